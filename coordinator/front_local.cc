// Clients that live in this process: a ticket is a peer whose name no ZeroMQ socket can have.
#include <boost/asio/post.hpp>

#include "coordinator/front.h"

namespace bitalloc {
namespace {

// libzmq's own names begin with a zero byte, too, but have 5 bytes; a peer that names itself may
// not begin with one.
const std::string kLocalPrefix("\0local-", 7);

std::string local_peer(RequestPort::Ticket ticket) { return kLocalPrefix + std::to_string(ticket); }

}  // namespace

bool Front::is_local(const std::string& peer) { return peer.starts_with(kLocalPrefix); }

RequestPort::Ticket Front::request(wire::Message message, Reply reply) {
  const Ticket ticket = next_ticket_++;
  const std::string peer = local_peer(ticket);
  local_clients_[peer] = std::move(reply);
  if (stopped_) {
    this->reply(message, peer, unavailable("the coordinator stops", "", "try again in a moment"));
    return ticket;
  }
  on_client({peer, "", std::move(message), std::nullopt});
  return ticket;
}

void Front::forget(Ticket ticket) {
  const std::string peer = local_peer(ticket);
  local_clients_.erase(peer);
  std::erase_if(watches_, [&](const auto& entry) { return entry.first.first == peer; });
}

bool Front::ready() const { return !stopped_ && !queue_.store_lost(); }

void Front::send_client(const wire::Message& message, const std::string& peer) {
  if (!is_local(peer)) return clients_.send(message, peer);
  // Later: whoever is told may ask or forget, and the caller may be walking over `watches_`.
  boost::asio::post(loop_, [this, message, peer] {
    const auto found = local_clients_.find(peer);
    if (found == local_clients_.end()) return;
    const Reply told = found->second;
    if (message.type != "event") local_clients_.erase(found);
    told(message);
  });
}

}  // namespace bitalloc
