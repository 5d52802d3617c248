// Random problems and two solvers written independently of the ones under test: enumeration, and a
// dynamic program over capacities in long double. Shared by the tests of this folder.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "solver/constraints.h"
#include "solver/problem.h"

namespace bitalloc::test {

struct Shape {
  int sites = 3;
  int candidates = 3;
  double scale = 1;             // nats
  bool small_integers = false;  // scores out of {-1, 0, 1, 2, 3}·scale: many ties
  bool equal_widths = false;
};

// Bits are quarters in [0.25, 16], widths whole numbers: costs are exact in quarter-bit·elements.
Problem random_problem(const Shape& shape, std::mt19937_64* random);

// A budget at or near an attainable value, rarely below the lowest.
double random_budget(const Problem& problem, std::mt19937_64* random);

struct Best {
  bool feasible = false;
  double objective = 0;
  std::vector<int> choice;  // by the rule of ties in solve.h
};

// All assignments, in lexicographic order.
Best enumerate(const Problem& problem, double budget);

// Calls `visit` with every assignment, in lexicographic order.
void for_each_assignment(const Problem& problem,
                         const std::function<void(const std::vector<int>&)>& visit);

// By the definition in neighbours.h, looking at all assignments: every neighbour of `choice` that
// keeps the constraints, in lexicographic order.
std::vector<std::vector<int>> enumerate_neighbours(const Problem& problem,
                                                   const Constraints& constraints,
                                                   const std::vector<int>& choice);

// Lowest objective within the budget, one cell a quarter-bit·element.
double capacity_program(const Problem& problem, double budget);

}  // namespace bitalloc::test
