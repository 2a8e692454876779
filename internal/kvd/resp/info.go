package resp

import (
	"fmt"
	"maps"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// redisVersion is the version that client libraries see, and by which they choose features:
// with 7.4 redis-py uses its client-side cache.
const redisVersion = "7.4.0"

func serverCommands() []command {
	const group = "server"
	return []command{
		{"info", -1, always, 0, 0, 0, info, group, "Describes the server: server, clients, memory, stats, replication, cluster, keyspace, weir."},
		{"config", -2, always, 0, 0, 0, config, group, "GET: settings that tools for Redis ask for."},
		{"command", -1, always, 0, 0, 0, commandCommand, group, "COUNT, DOCS, INFO, LIST, GETKEYS."},
		{"time", 1, always | isFast, 0, 0, 0, timeNow, group, "Returns this replica's clock."},
	}
}

func timeNow(k *call) {
	now := time.Now()
	k.array(2)
	k.text(strconv.FormatInt(now.Unix(), 10))
	k.text(strconv.FormatInt(int64(now.Nanosecond()/1000), 10))
}

// section is a section of INFO.
type section struct {
	name  string
	write func(c *conn, st *Status, line func(name string, value any))
}

var sections = []section{
	{"Server", infoServer},
	{"Clients", infoClients},
	{"Memory", infoMemory},
	{"Stats", infoStats},
	{"Replication", infoReplication},
	{"Cluster", infoCluster},
	{"Keyspace", infoKeyspace},
	{"Weir", infoWeir},
}

func info(k *call) {
	st := k.c.srv.backend.Status()
	wanted := make(map[string]bool)
	for _, a := range k.args[1:] {
		wanted[strings.ToLower(string(a))] = true
	}
	all := len(wanted) == 0 || wanted["all"] || wanted["default"] || wanted["everything"]
	var b strings.Builder
	for _, s := range sections {
		if !all && !wanted[strings.ToLower(s.name)] {
			continue
		}
		if b.Len() > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString("# " + s.name + "\r\n")
		s.write(k.c, st, func(name string, value any) { fmt.Fprintf(&b, "%s:%v\r\n", name, value) })
	}
	k.verbatim(b.String())
}

func infoServer(c *conn, st *Status, line func(string, any)) {
	up := time.Since(c.srv.since)
	port := "0"
	if _, p, err := net.SplitHostPort(c.sock.LocalAddr().String()); err == nil {
		port = p
	}
	line("redis_version", redisVersion)
	line("weir_version", st.Version)
	line("redis_mode", "standalone")
	line("os", runtime.GOOS+" "+runtime.GOARCH)
	line("arch_bits", strconv.IntSize)
	line("process_id", os.Getpid())
	line("run_id", nodeID(st.ID))
	line("tcp_port", port)
	line("server_time_usec", time.Now().UnixMicro())
	line("uptime_in_seconds", int64(up.Seconds()))
	line("uptime_in_days", int64(up.Hours()/24))
}

func infoClients(c *conn, _ *Status, line func(string, any)) {
	n := c.srv.Counts()
	line("connected_clients", n.Connected)
	line("maxclients", c.srv.cfg.MaxClients)
	line("tracking_clients", n.Listening)
}

func infoMemory(_ *conn, st *Status, line func(string, any)) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	line("used_memory", m.HeapAlloc)
	line("used_memory_rss", m.Sys-m.HeapReleased)
	line("used_memory_dataset", st.Bytes)
	line("maxmemory", 0)
	line("maxmemory_policy", "noeviction")
}

func infoStats(c *conn, _ *Status, line func(string, any)) {
	n := c.srv.Counts()
	line("total_connections_received", n.Accepted)
	line("total_commands_processed", n.Commands)
	line("rejected_connections", n.Rejected)
}

func infoReplication(c *conn, st *Status, line func(string, any)) {
	if !st.leads() {
		line("role", "slave")
		host, port, link := "", "0", "down"
		if leader := st.member(st.Leader); leader != nil {
			host, port = c.address(leader)
			link = "up"
		}
		line("master_host", host)
		line("master_port", port)
		line("master_link_status", link)
		line("slave_repl_offset", st.Applied)
		line("slave_read_only", 0)
		line("connected_slaves", 0)
	} else {
		line("role", "master")
		n := 0
		for _, m := range st.reachable() {
			if m.ID == st.ID || !m.Up {
				continue
			}
			host, port := c.address(m)
			line("slave"+strconv.Itoa(n), fmt.Sprintf("ip=%s,port=%s,state=online,offset=%d,lag=0", host, port, m.Applied))
			n++
		}
		line("connected_slaves", n)
	}
	line("master_repl_offset", st.Commit)
}

func infoCluster(_ *conn, _ *Status, line func(string, any)) { line("cluster_enabled", 1) }

func infoKeyspace(_ *conn, st *Status, line func(string, any)) {
	if st.Keys > 0 {
		line("db0", fmt.Sprintf("keys=%d,expires=%d,avg_ttl=0", st.Keys, st.Expiring))
	}
}

func infoWeir(_ *conn, st *Status, line func(string, any)) {
	for _, d := range st.details() {
		line(d.Name, d.Value)
	}
}

// details returns the figures of INFO weir and WEIR.STATUS.
func (st *Status) details() []Detail {
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	return append([]Detail{
		{"id", number(st.ID)},
		{"leader", number(st.Leader)},
		{"term", number(st.Term)},
		{"view", number(st.View)},
		{"preset", st.Preset},
		{"commit", number(st.Commit)},
		{"applied", number(st.Applied)},
		{"durable", number(st.Durable)},
		{"revision", number(st.Revision)},
	}, st.More...)
}

func config(k *call) {
	switch {
	case is(k.args[1], "GET") && len(k.args) >= 3:
		settings := k.c.srv.settings()
		var names []string
		for _, name := range slices.Sorted(maps.Keys(settings)) {
			if slices.ContainsFunc(k.args[2:], func(p []byte) bool { return matchGlob(strings.ToLower(string(p)), name) }) {
				names = append(names, name)
			}
		}
		k.dict(len(names))
		for _, name := range names {
			k.text(name)
			k.text(settings[name])
		}
	case is(k.args[1], "GET"):
		k.wrongArity()
	case is(k.args[1], "SET"), is(k.args[1], "REWRITE"), is(k.args[1], "RESETSTAT"):
		k.fail("ERR weir is configured by the flags of weir kv serve")
	default:
		k.unknownSub()
	}
}

// settings returns the settings that Redis tools ask for.
func (s *Server) settings() map[string]string {
	return map[string]string{
		"appendfsync":        "always",
		"appendonly":         "yes",
		"cluster-enabled":    "yes",
		"databases":          "1",
		"maxclients":         strconv.Itoa(s.cfg.MaxClients),
		"maxmemory":          "0",
		"maxmemory-policy":   "noeviction",
		"proto-max-bulk-len": strconv.Itoa(maxBulk),
		"save":               "",
		"timeout":            strconv.Itoa(int(s.cfg.IdleTimeout.Seconds())),
	}
}

func commandCommand(k *call) {
	t := k.c.srv.table
	if len(k.args) == 1 {
		k.commandInfo(t.names())
		return
	}
	names := make([]string, 0, len(k.args)-2)
	for _, a := range k.args[2:] {
		names = append(names, strings.ToLower(string(a)))
	}
	if len(names) == 0 {
		names = t.names()
	}
	switch {
	case is(k.args[1], "COUNT") && len(k.args) == 2:
		k.int(int64(len(t)))
	case is(k.args[1], "LIST") && len(k.args) == 2:
		k.array(len(names))
		for _, name := range names {
			k.text(name)
		}
	case is(k.args[1], "INFO"):
		k.commandInfo(names)
	case is(k.args[1], "DOCS"):
		k.commandDocs(names)
	case is(k.args[1], "GETKEYS") && len(k.args) > 3:
		k.commandKeys()
	case is(k.args[1], "COUNT"), is(k.args[1], "LIST"), is(k.args[1], "GETKEYS"):
		k.wrongArity()
	default:
		k.unknownSub()
	}
}

func (t table) names() []string { return slices.Sorted(maps.Keys(t)) }

func (k *call) commandInfo(names []string) {
	k.array(len(names))
	for _, name := range names {
		cmd := k.c.srv.table[name]
		if cmd == nil {
			k.null()
			continue
		}
		flags := cmd.flags.names()
		k.array(10)
		k.text(cmd.name)
		k.int(int64(cmd.arity))
		k.set(len(flags))
		for _, f := range flags {
			k.simple(f)
		}
		k.int(int64(cmd.first))
		k.int(int64(cmd.last))
		k.int(int64(cmd.step))
		k.set(0)   // categories of access
		k.array(0) // hints
		k.array(0) // specifications of keys
		k.array(0) // subcommands
	}
}

func (f flags) names() []string {
	var names []string
	for _, n := range []struct {
		flag flags
		name string
	}{
		{isWrite, "write"},
		{isRead, "readonly"},
		{anybody, "no_auth"},
		{always, "loading"},
		{notInMulti, "no_multi"},
		{isFast, "fast"},
	} {
		if f&n.flag != 0 {
			names = append(names, n.name)
		}
	}
	return names
}

func (k *call) commandDocs(names []string) {
	t := k.c.srv.table
	names = slices.DeleteFunc(names, func(name string) bool { return t[name] == nil })
	k.dict(len(names))
	for _, name := range names {
		k.text(name)
		k.dict(2)
		k.text("summary")
		k.text(t[name].summary)
		k.text("group")
		k.text(t[name].group)
	}
}

func (k *call) commandKeys() {
	args := k.args[2:]
	cmd := k.c.srv.table.find(args[0])
	switch {
	case cmd == nil:
		k.fail("ERR Invalid command specified")
	case !cmd.takes(len(args)):
		k.fail("ERR Invalid number of arguments specified for command")
	case cmd.first == 0:
		k.fail("ERR The command has no key arguments")
	default:
		keys := cmd.keys(args)
		k.array(len(keys))
		for _, key := range keys {
			k.bulk(key)
		}
	}
}
