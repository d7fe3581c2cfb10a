// Package atrest tests what somebody sees who reads the disk of the server.
package atrest
