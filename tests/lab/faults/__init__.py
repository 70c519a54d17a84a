"""The fault lab: one small file for each thing that can be wrong. `lab.fault` says how they are written and run."""
