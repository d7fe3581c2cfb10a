// Package atrest tests what a reader of the server's disk sees.
package atrest
