package lab

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// listensOn reports whether the process or one below it listens on a TCP port.
func (p *process) listensOn(port int) bool {
	sockets := make(map[string]bool)
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		content, err := os.ReadFile(table)
		if err == nil {
			listeners(string(content), port, sockets)
		}
	}
	for _, id := range append([]procID{p.id}, descendants(p.id.pid)...) {
		open, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", id.pid))
		for _, fd := range open {
			if target, err := os.Readlink(fd); err == nil && sockets[target] {
				return true
			}
		}
	}
	return false
}

// listeners adds what the kernel's table of TCP sockets says of those that
// listen on a port, by the name that a file descriptor of them has.
func listeners(table string, port int, found map[string]bool) {
	const listening = "0A"
	suffix := fmt.Appendf(nil, ":%04X", port)
	for lines := bufio.NewScanner(strings.NewReader(table)); lines.Scan(); {
		// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
		if !bytes.Contains(lines.Bytes(), suffix) {
			continue // as nearly all: a busy machine has thousands
		}
		if f := strings.Fields(lines.Text()); len(f) > 9 && f[3] == listening && strings.HasSuffix(f[1], string(suffix)) {
			found["socket:["+f[9]+"]"] = true
		}
	}
}
