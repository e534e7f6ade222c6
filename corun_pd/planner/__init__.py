"""The capacity planner: traces, a cost model and a simulator that runs the cluster's own policies."""
