package postgres

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// setLowWater sets how many bytes must be available before a reader of conn is woken. Only TCP
// supports it.
func setLowWater(conn net.Conn, bytes int) error {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return errors.ErrUnsupported
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	if err := raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, bytes)
	}); err != nil {
		return err
	}
	return set
}
