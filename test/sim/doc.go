// Package sim tests the whole of wake on fake time: a server, runners, the other
// services, agents and a client in one process and one synctest bubble, with
// faults that a seed decides on. See sim_test.go.
package sim
