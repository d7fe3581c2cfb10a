// Package sim tests the whole of wake on fake time: a server, runners, the other
// services, agents and a client in one process and one synctest bubble, with
// faults that a seed decides on. Agents run in keepers whose code is the product's, on a simulated machine: they outlive
// their runners, and are frozen and ended by their deadlines. It is for Linux, as keepers are. See sim_test.go.
package sim
