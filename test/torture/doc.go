// Package torture breaks a whole installation of wake for as long as one likes: a
// NATS cluster of three servers on disks of its own, three runners, a recorder,
// a snapshotter and an alerter, all of them processes that reach the servers
// through links that can be cut. Runs of random flows begin all the time and get
// commands at random, while processes and servers are killed and stopped, links
// cut one way or both and slowed down, disks filled, and the power cut: what a disk
// had not synced is gone.
//
// No process of wake may end unless it was killed or told to. What observes agents, such as a
// recorder whose disk is full, holds up none.
//
// Then the faults end, everything comes back, the runs have to end, and the checker
// of test/oracle judges what is stored, together with what a witness saw the
// servers acknowledge and with what commands and agents say they did.
//
// Everything is in the tests, which have the build tag torture: `make torture`.
// Settings come as flags after -args:
//
//	-seed N     which faults, when, and which load; default: another one each time
//	-duration D how long there are faults; default 20m
//	-pairs      two snapshotters and two alerters
//	-keep       keep the folder of a test that passed, too
//
// TestPowerCut and TestCorruption break servers alone, and report what is lost. TestServers kills servers alone, faster than they
// catch up.
//
// Disks need root, since each is an image on a loop device. Without, their faults
// are left out and the report says so.
package torture
