// Package upgrade tests that what a later version of wake writes passes through this one
// whole, as it does while an installation is upgraded process by process.
package upgrade
