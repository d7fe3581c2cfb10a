// Package natstest runs real NATS servers with JetStream inside the test
// process: one without a port ([Start], [New]), also on the fake clock of a
// synctest bubble ([Bubble]), or three on loopback TCP ([NewCluster]).
//
// Starting one server takes some 20 ms, so each test has its own and none is
// shared. All servers and connections are closed when the test ends, and leave
// no goroutine behind.
package natstest
