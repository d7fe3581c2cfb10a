// Package bench measures wake against the engine that it runs on.
//
// What is compared is measured in turn, round after round, on the same server
// and disk: A B A B …. A figure is the median of its rounds, a ratio that of the
// ratios within a round, so that a machine that is busy with something else
// slows both sides of it. Everything happens under a prefix of its own, see
// [NewScratch].
package bench
