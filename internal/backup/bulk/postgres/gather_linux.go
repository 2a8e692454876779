package postgres

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// setLowWater sets how many bytes have to be there for a reader of conn to be woken. Only
// TCP heeds it.
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
