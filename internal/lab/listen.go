package lab

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// listensOn reports whether the process or a descendant listens on a TCP port. Callers poll it,
// so it looks at descendants last, since that reads every process of the machine.
func (p *process) listensOn(port int) bool {
	sockets := make(map[string]bool)
	for _, t := range []struct {
		family byte
		table  string
	}{{unix.AF_INET, "/proc/net/tcp"}, {unix.AF_INET6, "/proc/net/tcp6"}} {
		if askListeners(t.family, port, sockets) == nil {
			continue
		}
		if table, err := os.Open(t.table); err == nil {
			listeners(table, port, sockets)
			_ = table.Close()
		}
	}
	if len(sockets) == 0 {
		return false
	}
	if holds(p.id.pid, sockets) {
		return true
	}
	for _, id := range descendants(p.id.pid) {
		if holds(id.pid, sockets) {
			return true
		}
	}
	return false
}

// holds reports whether a process has one of the sockets open.
func holds(pid int, sockets map[string]bool) bool {
	open, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range open {
		if target, err := os.Readlink(fd); err == nil && sockets[target] {
			return true
		}
	}
	return false
}

// Sizes and offsets in the structures of sock_diag(7).
const (
	netlinkHead  = unix.SizeofNlMsghdr
	diagQuestion = 56 // struct inet_diag_req_v2
	diagInode    = 68 // in struct inet_diag_msg
	tcpListen    = 10 // TCP_LISTEN
)

// askListeners adds the TCP sockets of a family that listen on a port, by the name of their
// file descriptors. With sock_diag(7) the kernel only looks at listening sockets, while reading
// its table costs 3 ms and more, mostly to find the first socket that does not listen.
func askListeners(family byte, port int, found map[string]bool) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return fmt.Errorf("open a socket of sock_diag: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return fmt.Errorf("bound the wait for sock_diag: %w", err)
	}
	var question [netlinkHead + diagQuestion]byte
	binary.NativeEndian.PutUint32(question[0:], uint32(len(question)))
	binary.NativeEndian.PutUint16(question[4:], unix.SOCK_DIAG_BY_FAMILY)
	binary.NativeEndian.PutUint16(question[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	body := question[netlinkHead:]
	body[0], body[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(body[4:], 1<<tcpListen)
	binary.BigEndian.PutUint16(body[8:], uint16(port))
	if err := unix.Sendto(fd, question[:], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("ask sock_diag: %w", err)
	}
	buf := make([]byte, 32<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read the answer of sock_diag: %w", err)
		}
		if done, err := answeredListeners(buf[:n], port, found); done || err != nil {
			return err
		}
	}
}

// answeredListeners adds the sockets in a part of the kernel's answer, and reports whether it
// was the last part. A kernel that cannot answer reports that in a message of its own or in the
// last one: ENOENT means that it has no tcp_diag.
func answeredListeners(b []byte, port int, found map[string]bool) (done bool, err error) {
	for len(b) >= netlinkHead {
		size := int(binary.NativeEndian.Uint32(b))
		if size < netlinkHead || size > len(b) {
			return false, errors.New("sock_diag: an answer that is cut off")
		}
		switch kind, answer := binary.NativeEndian.Uint16(b[4:]), b[netlinkHead:size]; {
		case kind == unix.NLMSG_DONE || kind == unix.NLMSG_ERROR:
			if len(answer) < 4 {
				return false, errors.New("sock_diag: an end that is too short")
			}
			if code := int32(binary.NativeEndian.Uint32(answer)); code < 0 {
				return false, fmt.Errorf("sock_diag: %w", unix.Errno(-code))
			}
			if kind == unix.NLMSG_DONE {
				return true, nil
			}
		case len(answer) < diagInode+4:
			return false, errors.New("sock_diag: an answer that is too short")
		case binary.BigEndian.Uint16(answer[4:]) == uint16(port):
			found[fmt.Sprintf("socket:[%d]", binary.NativeEndian.Uint32(answer[diagInode:]))] = true
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return false, nil
}

// listeners adds the listening sockets on a port in the kernel's table of TCP sockets, by the
// name of their file descriptors. They come before all others, for which the kernel would
// search a large hash table: so it is read two lines at a time, and no further than needed.
func listeners(table io.Reader, port int, found map[string]bool) {
	const listening = "0A"
	suffix := fmt.Sprintf(":%04X", port)
	lines := bufio.NewScanner(table)
	lines.Buffer(make([]byte, 300), bufio.MaxScanTokenSize)
	for lines.Scan() {
		// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
		f := strings.Fields(lines.Text())
		switch {
		case len(f) < 10 || f[0] == "sl":
		case f[3] != listening:
			return
		case strings.HasSuffix(f[1], suffix):
			found["socket:["+f[9]+"]"] = true
		}
	}
}
