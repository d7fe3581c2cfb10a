// Package browser looks at the console with a real browser: Chromium, driven by its own protocol, and a real
// `wake up`. Everything is in the tests, which have the build tag browser: `make test-console`.
package browser
