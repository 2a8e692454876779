package replica

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/kvd/consensus"
)

// ParseMembers reads a list of replicas: 1=host:port,2=host:port. Behind a slash
// is where Redis clients find it: a port of the same host, or host:port.
func ParseMembers(text string) ([]consensus.Member, error) {
	var out []consensus.Member
	for part := range strings.SplitSeq(text, ",") {
		m, err := ParseMember(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// joins stands for the first members of a replica that joined a cluster.
const joins = "join"

// first is what a new directory remembers of who made the cluster.
func (c *Config) first() string {
	if c.Join {
		return joins
	}
	parts := make([]string, 0, len(c.Members))
	for _, m := range c.Members {
		part := fmt.Sprintf("%d=%s", m.ID, m.Addr)
		if m.Client != "" {
			part += "/" + m.Client
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ",")
}

// firstMembers reads what first has written; a replica that joined has none.
func firstMembers(text string) ([]consensus.Member, error) {
	if text == joins {
		return nil, nil
	}
	return ParseMembers(text)
}

// ParseMember reads one replica of such a list.
func ParseMember(text string) (consensus.Member, error) {
	id, where, ok := strings.Cut(text, "=")
	if !ok {
		return consensus.Member{}, fmt.Errorf("replica %q: want ID=HOST:PORT or ID=HOST:PORT/REDISPORT", text)
	}
	n, err := strconv.ParseUint(id, 10, 32)
	if err != nil || n == 0 {
		return consensus.Member{}, fmt.Errorf("replica %q: the id is a whole number, at least 1", text)
	}
	addr, client, redis := strings.Cut(where, "/")
	host, err := hostOf(addr)
	if err != nil {
		return consensus.Member{}, fmt.Errorf("replica %q: %w", text, err)
	}
	m := consensus.Member{ID: n, Addr: addr, Client: client}
	if redis && !strings.Contains(client, ":") {
		m.Client = net.JoinHostPort(host, client)
	}
	if redis {
		if _, err := hostOf(m.Client); err != nil {
			return consensus.Member{}, fmt.Errorf("replica %q: for Redis clients: %w", text, err)
		}
	}
	return m, nil
}

// hostOf returns the host of an address that others can use.
func hostOf(addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" {
		return "", fmt.Errorf("address %q: want HOST:PORT", addr)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("port %q: want a number from 1 to 65535", port)
	}
	return host, nil
}
