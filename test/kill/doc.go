// Package kill runs the real pipeline as processes and kills them: a NATS
// server, runners, a recorder, a snapshotter and an alerter, and a flow of ten
// nodes whose every side effect leaves a line. Afterwards the log, the lines and
// what the services made of the log must tell one story, without a gap, a
// duplicate or a node that was run again after it had completed.
//
// Everything is in the tests, which have the build tag kill: `make kill`. Settings
// come as flags after -args:
//
//	-seed N     where and when it kills; default: another one each time
//	-kills N    how often; default 40
//	-keep       keep the folder of a test that passed, too
//
// Those on disks that are full have the tag disks, too, and need root: `make disks`.
//
// The tests with the real Claude CLI also need the tag claudecli and what
// test/claude/run sets up: `make kill-claude`. Those with the real programs of all
// agents need the tag agents and what test/agents/run sets up: `make test-agents`.
package kill
