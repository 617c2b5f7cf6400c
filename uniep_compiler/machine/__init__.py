"""The schedule machine: a plain Python executor of schedules that finds races, lost posts and deadlocks on a CPU."""
