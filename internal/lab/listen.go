package lab

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// listensOn reports whether the process or one below it listens on a TCP port. Most
// callers ask again and again until it does: what is below it is looked for last, since
// that reads of every process of the machine.
func (p *process) listensOn(port int) bool {
	sockets := make(map[string]bool)
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		if table, err := os.Open(name); err == nil {
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

// listeners adds what the kernel's table of TCP sockets says of those that
// listen on a port, by the name that a file descriptor of them has. They stand in
// front of all others, for which the kernel would look through a large hash table: it
// is asked for two lines at a time, and for no more than are needed.
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
