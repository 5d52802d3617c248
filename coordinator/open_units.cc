#include "coordinator/open_units.h"

namespace bitalloc {

OpenUnits::OpenUnits(const PlanLayout& layout)
    : layout_(layout),
      slots_(layout.num_units()),
      batches_(layout.num_batches()),
      quiet_(layout.num_batches()) {}

OpenUnits::Share OpenUnits::share(size_t batch) const {
  const Batch& state = batches_[batch];
  return {-static_cast<double>(state.open) / static_cast<double>(state.workers + 1), batch};
}

template <typename Change>
void OpenUnits::change(size_t batch, const Change& change) {
  Batch& state = batches_[batch];
  if (state.open > 0 && state.workers > 0) shared_.erase(share(batch));
  change(state);
  if (state.open > 0 && state.workers > 0) shared_.insert(share(batch));
  if (state.open > 0 && state.workers == 0) {
    quiet_.insert(batch);
  } else {
    quiet_.erase(batch);
  }
}

void OpenUnits::insert(size_t slot) {
  if (slots_.contains(slot)) return;
  slots_.insert(slot);
  change(layout_.batch(slot), [](Batch& batch) { ++batch.open; });
}

void OpenUnits::erase(size_t slot) {
  if (!slots_.contains(slot)) return;
  slots_.erase(slot);
  change(layout_.batch(slot), [](Batch& batch) { --batch.open; });
}

void OpenUnits::join(size_t batch) {
  change(batch, [](Batch& state) { ++state.workers; });
}

void OpenUnits::leave(size_t batch) {
  change(batch, [](Batch& state) { --state.workers; });
}

std::optional<size_t> OpenUnits::first_of(size_t batch) const {
  const auto slot = slots_.first_from(layout_.batch_begin(batch));
  return slot && *slot < layout_.batch_begin(batch + 1) ? slot : std::nullopt;
}

std::optional<size_t> OpenUnits::best() const {
  if (const auto batch = quiet_.first_from(0)) return first_of(*batch);
  if (!shared_.empty()) return first_of(shared_.begin()->second);
  return std::nullopt;
}

}  // namespace bitalloc
