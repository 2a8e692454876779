//go:build !linux

package netwire

import "net"

// Quick returns conn.
func Quick(conn net.Conn) net.Conn { return conn }
