package netloop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Keepalive says how a TCP connection notices that its peer has vanished: its
// machine lost power, or a firewall forgot the connection. The zero value of a field
// means its default.
//
// Probes detect that while a connection is idle. While sent bytes are unacknowledged, the
// kernel sends those again instead of probes, for about a quarter of an hour (tcp_retries2):
// UserTimeout bounds that. It also ends a connection to a peer that is alive and does not
// read for so long, such as a server whose COPY waits for a lock, which is why it has no
// default.
type Keepalive struct {
	// Off disables probes. Default: enabled.
	Off bool
	// Idle is how long a connection is silent before the first probe, Interval the time
	// between two of them, in whole seconds. Default: 15 s, 15 s.
	Idle, Interval time.Duration
	// Count is how many probes without an answer end the connection. Default: 9.
	Count int
	// UserTimeout is how long sent bytes may remain unacknowledged (TCP_USER_TIMEOUT).
	// Default: 0, the system's setting.
	UserTimeout time.Duration
}

// The kernel's limits.
const (
	maxKeepTime    = 32767 * time.Second
	maxKeepCount   = 127
	maxUserTimeout = (1<<31 - 1) * time.Millisecond
)

// WithDefaults returns k with every default filled in.
func (k Keepalive) WithDefaults() Keepalive {
	k.Idle = cmp.Or(k.Idle, 15*time.Second)
	k.Interval = cmp.Or(k.Interval, 15*time.Second)
	k.Count = cmp.Or(k.Count, 9)
	return k
}

// Validate returns an error that names the first invalid flag.
func (k Keepalive) Validate() error {
	for _, f := range []struct {
		flag string
		v    time.Duration
	}{{"--tcp-keepidle", k.Idle}, {"--tcp-keepintvl", k.Interval}} {
		if f.v < time.Second || f.v > maxKeepTime || f.v%time.Second != 0 {
			return fmt.Errorf("%s %s: want whole seconds, 1s to %s", f.flag, f.v, maxKeepTime)
		}
	}
	if k.Count < 1 || k.Count > maxKeepCount {
		return fmt.Errorf("--tcp-keepcnt %d: want 1 to %d", k.Count, maxKeepCount)
	}
	if k.UserTimeout != 0 && (k.UserTimeout < time.Millisecond || k.UserTimeout > maxUserTimeout) {
		return fmt.Errorf("--tcp-user-timeout %s: want 1ms to %s", k.UserTimeout, maxUserTimeout)
	}
	return nil
}

// set sets the options of a TCP socket.
func (k Keepalive) set(fd int) error {
	type option struct{ level, name, value int }
	options := []option{{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 0}}
	if !k.Off {
		options = []option{
			{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
			{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(k.Idle / time.Second)},
			{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(k.Interval / time.Second)},
			{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, k.Count},
		}
	}
	if k.UserTimeout > 0 {
		options = append(options, option{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(k.UserTimeout.Milliseconds())})
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return err
		}
	}
	return nil
}

// control sets the options of a connection or listener by its raw descriptor.
func (k Keepalive) control(c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) { err = k.set(int(fd)) }); e != nil {
		return e
	}
	return os.NewSyscallError("setsockopt", err)
}

// Dial opens a connection as net.Dialer does, with k's options if it is TCP.
func (k Keepalive) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	k = k.WithDefaults()
	d := net.Dialer{KeepAlive: -1, Control: func(network, _ string, c syscall.RawConn) error {
		if !strings.HasPrefix(network, "tcp") {
			return nil
		}
		return k.control(c)
	}}
	return d.DialContext(ctx, network, address)
}

// Accepted sets k's options on a connection of a listener, which has the defaults.
func (k Keepalive) Accepted(conn net.Conn) error {
	k = k.WithDefaults()
	tcp, ok := conn.(*net.TCPConn)
	if !ok || k == (Keepalive{}).WithDefaults() {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err == nil {
		err = k.control(raw)
	}
	if errors.Is(err, net.ErrClosed) {
		return nil // the client has left; the reader will notice
	}
	return err
}

// AcceptedOn is Accepted for a connection by its descriptor.
func (k Keepalive) AcceptedOn(fd int, from net.Addr) error {
	k = k.WithDefaults()
	if _, tcp := from.(*net.TCPAddr); !tcp || k == (Keepalive{}).WithDefaults() {
		return nil
	}
	return os.NewSyscallError("setsockopt", k.set(fd))
}
