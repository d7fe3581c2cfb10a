// Package service is what every process of wake has in common: settings from
// flags and the environment, the logger, the connection to NATS, health and
// metrics, signals and the orderly end. It knows processes, not runs.
package service
