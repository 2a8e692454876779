package resp

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

func clusterCommands() []command {
	return []command{
		{"cluster", -2, always, 0, 0, 0, cluster, "cluster", "INFO, SLOTS, SHARDS, NODES, MYID, KEYSLOT: all slots are the leader's."},
		{"role", 1, always | isFast, 0, 0, 0, role, "server", "Says whether this replica leads, and who else there is."},
	}
}

// redirect returns a redirect for a command if the client understands it. For other clients
// this replica forwards what it cannot execute.
func (c *conn) redirect(cmd *command, args [][]byte) string {
	st := c.srv.backend.Status()
	if st.Loading {
		return errorText(ErrLoading)
	}
	if !c.redirects || c.level != Strong || st.Leader == st.ID {
		return ""
	}
	keys := cmd.keys(args)
	leader := st.member(st.Leader)
	if len(keys) == 0 || leader == nil || leader.Resp == "" {
		return ""
	}
	host, port := c.address(leader)
	return fmt.Sprintf("MOVED %d %s", keySlot(keys[0]), net.JoinHostPort(host, port))
}

func (st *Status) member(id uint64) *Member {
	for i := range st.Members {
		if st.Members[i].ID == id {
			return &st.Members[i]
		}
	}
	return nil
}

// leads reports whether this replica is the leader.
func (st *Status) leads() bool { return st.Leader != 0 && st.Leader == st.ID }

func (st *Status) helloRole() string {
	if st.leads() {
		return "master"
	}
	return "replica"
}

// address returns the address at which the client of c reaches a member. A member that listens
// on all addresses has the host at which the client has reached this one.
func (c *conn) address(m *Member) (host, port string) {
	host, port, err := net.SplitHostPort(m.Resp)
	if err != nil {
		return m.Resp, "0"
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		if own, _, err := net.SplitHostPort(c.sock.LocalAddr().String()); err == nil {
			host = own
		}
	}
	return host, port
}

// reachable returns the members with an address for Redis clients, the leader first.
func (st *Status) reachable() []*Member {
	var list []*Member
	for i := range st.Members {
		if st.Members[i].Resp != "" {
			list = append(list, &st.Members[i])
		}
	}
	slices.SortStableFunc(list, func(a, b *Member) int {
		switch {
		case a.ID == st.Leader:
			return -1
		case b.ID == st.Leader:
			return 1
		default:
			return 0
		}
	})
	return list
}

// nodeID returns a member's id as clients of Redis Cluster expect it.
func nodeID(id uint64) string { return fmt.Sprintf("%040x", id) }

func cluster(k *call) {
	st := k.c.srv.backend.Status()
	sub, n := strings.ToLower(string(k.args[1])), len(k.args)
	switch {
	case sub == "keyslot" && n == 3:
		k.int(int64(keySlot(k.args[2])))
	case sub == "myid" && n == 2:
		k.text(nodeID(st.ID))
	case sub == "info" && n == 2:
		k.verbatim(st.clusterInfo())
	case sub == "slots" && n == 2:
		k.c.redirects = true
		k.clusterSlots(st)
	case sub == "shards" && n == 2:
		k.c.redirects = true
		k.clusterShards(st)
	case sub == "nodes" && n == 2:
		k.c.redirects = true
		k.verbatim(k.c.clusterNodes(st))
	case slices.Contains([]string{"keyslot", "myid", "info", "slots", "shards", "nodes"}, sub):
		k.wrongArity()
	default:
		k.unknownSub()
	}
}

func (st *Status) clusterInfo() string {
	state, assigned := "ok", slots
	if st.Leader == 0 {
		state, assigned = "fail", 0
	}
	var b strings.Builder
	for _, line := range []struct {
		name  string
		value any
	}{
		{"cluster_enabled", 1},
		{"cluster_state", state},
		{"cluster_slots_assigned", assigned},
		{"cluster_slots_ok", assigned},
		{"cluster_slots_pfail", 0},
		{"cluster_slots_fail", 0},
		{"cluster_known_nodes", len(st.Members)},
		{"cluster_size", 1},
		{"cluster_current_epoch", st.Term},
		{"cluster_my_epoch", st.Term},
	} {
		fmt.Fprintf(&b, "%s:%v\r\n", line.name, line.value)
	}
	return b.String()
}

// clusterSlots says that the leader has all slots, and that the other members are its replicas.
func (k *call) clusterSlots(st *Status) {
	list := st.reachable()
	if st.member(st.Leader) == nil || len(list) == 0 {
		k.array(0)
		return
	}
	k.array(1)
	k.array(2 + len(list))
	k.int(0)
	k.int(slots - 1)
	for _, m := range list {
		host, port := k.c.address(m)
		k.array(4)
		k.text(host)
		k.int(portNumber(port))
		k.text(nodeID(m.ID))
		k.array(0)
	}
}

func portNumber(port string) int64 {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return 0 // the name of a service, which clients cannot use
	}
	return int64(n)
}

func (k *call) clusterShards(st *Status) {
	list := st.reachable()
	k.array(1)
	k.dict(2)
	k.text("slots")
	if st.member(st.Leader) == nil {
		k.array(0)
	} else {
		k.array(2)
		k.int(0)
		k.int(slots - 1)
	}
	k.text("nodes")
	k.array(len(list))
	for _, m := range list {
		host, port := k.c.address(m)
		role, health := "replica", "online"
		if m.ID == st.Leader {
			role = "master"
		}
		if !m.Up && m.ID != st.ID {
			health = "failed"
		}
		k.dict(7)
		k.text("id")
		k.text(nodeID(m.ID))
		k.text("port")
		k.int(portNumber(port))
		k.text("ip")
		k.text(host)
		k.text("endpoint")
		k.text(host)
		k.text("role")
		k.text(role)
		k.text("replication-offset")
		k.int(int64(m.Applied))
		k.text("health")
		k.text(health)
	}
}

func (c *conn) clusterNodes(st *Status) string {
	var b strings.Builder
	for _, m := range st.reachable() {
		host, port := c.address(m)
		flags, master, link := "slave", "-", "connected"
		if m.ID == st.Leader {
			flags = "master"
		} else if st.Leader != 0 {
			master = nodeID(st.Leader)
		}
		if m.ID == st.ID {
			flags = "myself," + flags
		} else if !m.Up {
			flags, link = flags+",fail", "disconnected"
		}
		fmt.Fprintf(&b, "%s %s:%s@%s %s %s 0 0 %d %s", nodeID(m.ID), host, port, port, flags, master, st.Term, link)
		if m.ID == st.Leader {
			fmt.Fprintf(&b, " 0-%d", slots-1)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func role(k *call) {
	st := k.c.srv.backend.Status()
	if st.leads() {
		k.array(3)
		k.text("master")
		k.int(int64(st.Applied))
		others := slices.DeleteFunc(st.reachable(), func(m *Member) bool { return m.ID == st.ID })
		k.array(len(others))
		for _, m := range others {
			host, port := k.c.address(m)
			k.array(3)
			k.text(host)
			k.text(port)
			k.text(strconv.FormatUint(m.Applied, 10))
		}
		return
	}
	host, port, link := "", "0", "connect"
	if leader := st.member(st.Leader); leader != nil {
		host, port = k.c.address(leader)
		link = "connected"
	}
	k.array(5)
	k.text("slave")
	k.text(host)
	k.int(portNumber(port))
	k.text(link)
	k.int(int64(st.Applied))
}
