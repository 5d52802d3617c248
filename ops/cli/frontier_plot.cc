#include "ops/cli/frontier_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/cli/output.h"

namespace bitalloc::cli {
namespace {

constexpr double kWidth = 860;
constexpr double kHeight = 520;
constexpr double kLeft = 90;
constexpr double kRight = kWidth - 30;
constexpr double kTop = 50;
constexpr double kBottom = kHeight - 64;
constexpr double kBandErrors = 1.96;  // standard errors: 95 % of a normal distribution

struct Point {
  double bits = 0;
  double nats = 0;
  double low = 0;  // of the band; equal to nats where there is no error
  double high = 0;
  bool knee = false;
};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

std::vector<Point> read_points(const Json& answer) {
  std::vector<Point> points;
  for (const Json& json : answer.at("frontier")) {
    Point point;
    point.bits = json.at("effective_bits");
    point.nats = json.at("objective_kl_nats");
    const Json error = json.value("objective_standard_error", Json());
    const double half = error.is_null() ? 0 : kBandErrors * error.get<double>();
    point.low = point.nats - half;
    point.high = point.nats + half;
    point.knee = json.value("knee", false);
    points.push_back(point);
  }
  return points;
}

// Data to pixels: bits linear, nats logarithmic. What is too low for the picture is at its edge.
class Axes {
 public:
  explicit Axes(const std::vector<Point>& points) {
    left_ = points.front().bits;
    right_ = points.back().bits;
    double low = std::numeric_limits<double>::infinity();
    double high = 0;
    for (const Point& point : points) {
      if (point.nats > 0) low = std::min(low, point.nats);
      high = std::max(high, point.high);
    }
    if (!(high > 0)) low = high = 1;  // nothing has a logarithm
    bottom_ = std::log10(low) - 0.1;
    top_ = std::log10(high) + 0.1;
    const double margin = right_ > left_ ? 0.02 * (right_ - left_) : 0.5;
    left_ -= margin;
    right_ += margin;
  }

  double x(double bits) const {
    return kLeft + (kRight - kLeft) * (bits - left_) / (right_ - left_);
  }
  double y(double nats) const {
    const double level = nats > 0 ? std::max(std::log10(nats), bottom_) : bottom_;
    return kBottom - (kBottom - kTop) * (level - bottom_) / (top_ - bottom_);
  }

  // About eight round numbers of bits.
  std::vector<double> bit_ticks() const {
    const double rough = (right_ - left_) / 8;
    const double power = std::pow(10, std::floor(std::log10(rough)));
    double step = 10 * power;
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor * power >= rough) {
        step = factor * power;
        break;
      }
    }
    std::vector<double> ticks;
    for (double k = std::ceil(left_ / step); k * step <= right_; ++k) ticks.push_back(k * step);
    return ticks;
  }

  // Powers of ten, with 2 and 5 between them where there are few.
  std::vector<double> nat_ticks() const {
    std::vector<double> ticks;
    const bool few = top_ - bottom_ < 2;
    for (double decade = std::floor(bottom_); decade <= top_; ++decade) {
      for (const double factor : few ? std::vector<double>{1, 2, 5} : std::vector<double>{1}) {
        const double level = decade + std::log10(factor);
        if (level >= bottom_ && level <= top_) ticks.push_back(factor * std::pow(10, decade));
      }
    }
    return ticks;
  }

 private:
  double left_ = 0;
  double right_ = 0;
  double bottom_ = 0;  // log10 of nats
  double top_ = 0;
};

std::string tick_marks(const Axes& axes) {
  std::string svg;
  for (const double bits : axes.bit_ticks()) {
    const double x = axes.x(bits);
    svg += fmt::format(
        "<path class=\"grid\" d=\"M{:.1f} {}V{}\"/>"
        "<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
        x, kTop, kBottom, x, kBottom + 20, bits_text(bits));
  }
  for (const double nats : axes.nat_ticks()) {
    const double y = axes.y(nats);
    svg += fmt::format(
        "<path class=\"grid\" d=\"M{} {:.1f}H{}\"/>"
        "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:g}</text>\n",
        kLeft, y, kRight, kLeft - 8, y + 4, nats);
  }
  return svg;
}

// From one point to the next: along the step, or straight when what is between is not known.
std::string step_to(const Axes& axes, double bits, double nats, bool exact) {
  return exact ? fmt::format("H{:.2f}V{:.2f}", axes.x(bits), axes.y(nats))
               : fmt::format("L{:.2f} {:.2f}", axes.x(bits), axes.y(nats));
}

std::string band(const Axes& axes, const std::vector<Point>& points, bool exact) {
  const bool any = std::any_of(points.begin(), points.end(),
                               [](const Point& point) { return point.high > point.low; });
  if (!any) return "";
  std::string path =
      fmt::format("M{:.2f} {:.2f}", axes.x(points.front().bits), axes.y(points.front().high));
  for (const Point& point : points) path += step_to(axes, point.bits, point.high, exact);
  path += fmt::format("V{:.2f}", axes.y(points.back().low));
  for (size_t k = points.size() - 1; k > 0; --k) {
    const double x = axes.x(points[k - 1].bits);
    const double y = axes.y(points[k - 1].low);
    // Backwards a step first rises, then goes left.
    path += exact ? fmt::format("V{:.2f}H{:.2f}", y, x) : fmt::format("L{:.2f} {:.2f}", x, y);
  }
  return fmt::format("<path class=\"band\" d=\"{}Z\"/>\n", path);
}

std::string line(const Axes& axes, const std::vector<Point>& points, bool exact) {
  std::string path =
      fmt::format("M{:.2f} {:.2f}", axes.x(points.front().bits), axes.y(points.front().nats));
  for (const Point& point : points) path += step_to(axes, point.bits, point.nats, exact);
  return fmt::format("<path class=\"line\" d=\"{}\"/>\n", path);
}

std::string knee_marks(const Axes& axes, const std::vector<Point>& points) {
  std::string svg;
  for (const Point& point : points) {
    if (!point.knee) continue;
    const double x = axes.x(point.bits);
    const double y = axes.y(point.nats);
    const bool at_edge = x > kRight - 200;  // where a label to the right would leave the picture
    svg += fmt::format(
        "<g class=\"knee\"><circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"5\"/>"
        "<text x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"{}\">knee: {} bits, {:.2e} "
        "nats</text></g>\n",
        x, y, at_edge ? x : x + 9, at_edge ? y - 22 : y - 9, at_edge ? "end" : "start",
        bits_text(point.bits), point.nats);
  }
  return svg;
}

std::string labels(const Json& answer, const std::string& title, bool has_band) {
  std::string note = has_band ? "band: ± 1.96 standard errors" : "";
  const auto add = [&](const std::string& more) { note += (note.empty() ? "" : "; ") + more; };
  if (!answer.value("exact", true)) add("only extreme points");
  if (answer.value("partial", false)) {
    add(fmt::format("search under way: {} of {} sites have scores",
                    answer.at("scored_sites").get<int64_t>(), answer.at("sites").get<int64_t>()));
  }
  const double middle = (kLeft + kRight) / 2;
  return fmt::format(
      "<text class=\"title\" x=\"{}\" y=\"22\" text-anchor=\"middle\">{}</text>\n"
      "<text x=\"{}\" y=\"40\" text-anchor=\"middle\">{}</text>\n"
      "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">budget (effective bits an element)</text>\n"
      "<text transform=\"translate(20 {}) rotate(-90)\" text-anchor=\"middle\">"
      "best summed KL (nats a token)</text>\n",
      middle, escaped(title), middle, note, middle, kHeight - 16, (kTop + kBottom) / 2);
}

}  // namespace

std::string frontier_svg(const Json& answer, const std::string& title) {
  const std::vector<Point> points = read_points(answer);
  const Axes axes(points);
  const bool exact = answer.value("exact", true);
  const std::string errors = band(axes, points, exact);
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
             "height=\"{1}\" role=\"img\">\n<title>{2}</title>\n",
             kWidth, kHeight, escaped(title)) +
         "<style>text{font:13px sans-serif;fill:#222}.title{font-size:16px}"
         ".grid{stroke:#ddd;fill:none}.band{fill:#9bc3e6;fill-opacity:.5}"
         ".line{stroke:#1f5f99;stroke-width:2;fill:none}.knee circle{fill:#c0392b}"
         ".knee text{fill:#c0392b}</style>\n"
         "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n" +
         tick_marks(axes) + errors + line(axes, points, exact) + knee_marks(axes, points) +
         labels(answer, title, !errors.empty()) + "</svg>\n";
}

}  // namespace bitalloc::cli
