// Package netwire has what the wire protocols of both database families do alike
// with a network connection: bounds in time, and TLS.
package netwire
