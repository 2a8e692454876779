package proxybench

import (
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/ruler/bench/floor"
)

// A copier is a minimal proxy that knows no protocol: one thread that waits, reads and writes,
// and a server connection for each client connection.
type copier struct {
	loop   *floor.Loop
	server *net.TCPAddr
	others map[int32]int // maps each connection to its counterpart
	buf    []byte

	clients map[int32]bool
	out     []byte                          // used by a grouper
	seen    func(from int32, b []byte) bool // handles data that must not be copied
	turned  func() error                    // called after each batch of events
}

// copyBytes copies between the clients that connect and the server at address, until standard
// input ends, or groups their writes of a protocol. It writes its own address to out.
func copyBytes(address string, group string, out io.Writer) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("copy bytes: %w", err)
		}
	}()
	c := &copier{
		others: make(map[int32]int), buf: make([]byte, 64<<10), clients: make(map[int32]bool),
		seen: func(int32, []byte) bool { return false }, turned: func() error { return nil },
	}
	if c.loop, err = floor.NewLoop(); err != nil {
		return err
	}
	if c.server, err = net.ResolveTCPAddr("tcp", address); err != nil {
		return err
	}
	if group != "" {
		if err := newGrouper(c, group); err != nil {
			return err
		}
	}
	if err := c.loop.Listen(out); err != nil {
		return err
	}
	return c.loop.Run(c.take, c.move, c.turned)
}

// take connects to the server for a client.
func (c *copier) take(client int) error {
	server, err := floor.Connect(c.server)
	if err != nil {
		_ = unix.Close(client)
		return err
	}
	for _, fd := range []int{client, server} {
		if err := c.loop.Watch(fd); err != nil {
			return err
		}
	}
	c.others[int32(client)], c.others[int32(server)] = server, client
	c.clients[int32(client)] = true
	return nil
}

// move copies what a connection has sent, and closes both connections when it has ended.
func (c *copier) move(fd int) error {
	from := int32(fd)
	to, ok := c.others[from]
	if !ok {
		return nil // closed by an earlier event
	}
	n := floor.Read(fd, c.buf)
	if n == 0 {
		c.end(from, int32(to))
		return nil
	}
	if !c.seen(from, c.buf[:n]) && !floor.Write(to, c.buf[:n]) {
		c.end(from, int32(to))
	}
	return nil
}

func (c *copier) end(fds ...int32) {
	for _, fd := range fds {
		delete(c.others, fd)
		delete(c.clients, fd)
		_ = unix.Close(int(fd))
	}
}
