// Package netwire has what the wire protocols of both database families share: time limits of
// network connections, and TLS.
package netwire
