package pgbouncer

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/proxy/netloop"
)

// A Conversion is a configuration converted to one of weir proxy.
type Conversion struct {
	// YAML is the text of weir.yaml, with notes as comments.
	YAML string
	// Left are the settings that weir.yaml cannot express, with their place and what to
	// do. If there are any, only "weir pgbouncer" does what the file says.
	Left []string
}

// Convert converts the configuration to weir.yaml. weir proxy has one server, or several
// that replace each other, and does not rename databases.
func (c *Config) Convert() Conversion {
	v := &converter{c: c}
	v.server()
	v.listen()
	v.auth()
	v.sharing()
	v.rules()
	v.rest()
	v.line("")
	for _, n := range c.Notes {
		v.line("# " + n.Place.String() + ": " + n.Setting + " has no effect in weir: " + n.Why)
	}
	for _, l := range v.left {
		v.line("# NOT CONVERTED: " + l)
	}
	return Conversion{YAML: strings.TrimLeft(v.b.String(), "\n"), Left: v.left}
}

type converter struct {
	c    *Config
	b    strings.Builder
	left []string
}

func (v *converter) line(s string) { v.b.WriteString(s + "\n") }

// set writes a key.
func (v *converter) set(key, value string) { v.line(key + ": " + quote(value)) }

// quote returns a YAML value, in single quotes if it could be misread.
func quote(s string) string {
	if s != "" && strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_./-", r))
	}) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", "''") + "'"
}

// leave adds a setting that cannot be expressed.
func (v *converter) leave(at Place, what, todo string) {
	v.left = append(v.left, fmt.Sprintf("%s: %s: %s", at, what, todo))
}

// given reports whether the file has a setting, with another value than its default.
func (v *converter) given(name string) bool {
	return v.c.Text(name) != find(name).def && v.c.Text(name) != ""
}

// byPlace returns the databases in the order of the file.
func (c *Config) byPlace() []*Database {
	list := slices.Collect(maps.Values(c.Databases))
	if c.Auto != nil {
		list = append(list, c.Auto)
	}
	slices.SortFunc(list, func(a, b *Database) int { return a.Line - b.Line })
	return list
}

// server writes the one server that has all databases.
func (v *converter) server() {
	list := v.c.byPlace()
	if len(list) == 0 {
		v.left = append(v.left, v.c.File+": there is no database: name the server with postgres")
		return
	}
	first := list[0]
	var address []string
	for _, h := range first.Hosts {
		address = append(address, Address(h, first.Port))
	}
	u := url.URL{Scheme: "postgres", Path: "/postgres"}
	if user := v.c.Text("auth_user"); user != "" {
		u.User = url.User(user)
	}
	q := url.Values{"sslmode": {v.c.Text("server_tls_sslmode")}}
	for param, name := range map[string]string{"sslrootcert": "server_tls_ca_file", "sslcert": "server_tls_cert_file", "sslkey": "server_tls_key_file"} {
		if f := v.c.Text(name); f != "" {
			q.Set(param, f)
		}
	}
	u.RawQuery = q.Encode()
	if strings.HasPrefix(address[0], "/") {
		u.Host = ""
		q.Set("host", address[0][:strings.LastIndex(address[0], "/")])
		q.Set("port", strconv.Itoa(first.Port))
		u.RawQuery = q.Encode()
	} else {
		u.Host = strings.Join(address, ",")
	}
	v.set("postgres", u.String())
	for _, d := range list {
		what := "database " + strconv.Quote(d.Name)
		if !slices.Equal(d.Hosts, first.Hosts) || d.Port != first.Port {
			v.leave(d.Place, what+" is on another server", "run one weir proxy for each server")
		}
		if d.Name != "*" && d.DBName != d.Name || d.Name == "*" && d.DBName != "" {
			v.leave(d.Place, what+" has another name on the server", "have clients connect to "+strconv.Quote(d.DBName))
		}
		if d.User != "" {
			v.leave(d.Place, what+" is used as user "+strconv.Quote(d.User), "have clients log in as that user, whose pool they share then")
		}
		if d.ConnectQuery != "" || len(d.Params) > 0 {
			v.leave(d.Place, what+" has settings of its own", "use ALTER DATABASE ... SET on the server")
		}
		if d.AuthUser != "" || d.AuthDBName != "" || d.AuthQuery != "" {
			v.leave(d.Place, what+" looks its users up in its own way", "weir proxy has one auth_query for all")
		}
		if len(d.Hosts) > 1 {
			v.leave(d.Place, what+" takes its hosts in turn", "weir proxy takes the one that serves as what is wanted: see several hosts in its manual")
		}
		if d.Mode != "" && d.Mode != v.c.Text("pool_mode") {
			v.leave(d.Place, what+" has a pool_mode of its own", "run a weir proxy of its own for it")
		}
	}
	if v.c.Auto == nil {
		v.line("# weir proxy has no list of databases: any that the server has can be named.")
	}
}

func (v *converter) listen() {
	addresses := v.c.List("listen_addr")
	port := strconv.Itoa(v.c.Number("listen_port"))
	dir := v.c.Text("unix_socket_dir")
	switch {
	case len(addresses) == 0 && dir != "":
		v.set("listen_postgres", Address(dir, v.c.Number("listen_port")))
	default:
		host := "127.0.0.1"
		if len(addresses) > 0 {
			host = strings.NewReplacer("*", "0.0.0.0", "localhost", "127.0.0.1").Replace(addresses[0])
		}
		v.set("listen_postgres", strings.TrimSuffix(Address(strings.Trim(host, "[]"), v.c.Number("listen_port")), ""))
	}
	for i, a := range addresses {
		if i > 0 {
			v.leave(v.c.places["listen_addr"], "listen_addr "+a+":"+port, "weir proxy listens on one address: 0.0.0.0 is all of them")
		}
	}
	if len(addresses) > 0 && v.given("unix_socket_dir") {
		v.leave(v.c.places["unix_socket_dir"], "unix_socket_dir beside listen_addr", "weir proxy listens on one address")
	}
	if v.c.On("so_reuseport") {
		v.line("reuse_port: true")
	}
	if n := v.c.Number("peer_id"); n > 0 || len(v.c.Peers) > 0 {
		v.leave(v.c.places["peer_id"], "peers", "see --peer-id in weir proxy's manual")
	}
}

func (v *converter) auth() {
	method := v.c.Text("auth_type")
	switch method {
	case "plain":
		method = "password"
	case "any", "hba":
		v.leave(v.c.places["auth_type"], "auth_type "+method, "choose relay, ldap, scram-sha-256, md5, password, cert or trust for all clients")
		method = "scram-sha-256"
	}
	v.set("auth", method)
	if v.c.LDAP != nil {
		v.set("ldap", v.c.Text("auth_ldap_options"))
	}
	if f := v.c.Text("auth_file"); f != "" {
		v.set("auth_file", f)
	}
	if v.c.Text("auth_user") != "" && method != "ldap" {
		v.set("auth_query", v.c.Text("auth_query"))
	}
	if v.c.Text("auth_dbname") != "" {
		v.line("# auth_dbname: the database of postgres, above, is where auth_query runs.")
	}
	if admins := v.c.List("admin_users"); len(admins) > 0 {
		v.line("admin_users: [" + strings.Join(quoteAll(admins), ", ") + "]")
	}
	if v.given("stats_users") {
		v.leave(v.c.places["stats_users"], "stats_users", "who may open weir proxy's console may do all there: give them the metrics of --admin instead")
	}
	if mode := v.c.Text("client_tls_sslmode"); mode != "disable" {
		v.set("client_tls_mode", mode)
		for _, name := range []string{"cert", "key", "ca"} {
			if f := v.c.Text("client_tls_" + name + "_file"); f != "" {
				v.set("client_tls_"+name, f)
			}
		}
	}
	for _, side := range []string{"client", "server"} {
		if name := side + "_tls_protocols"; v.c.Protocols(side).Max < 0x0304 || v.c.Protocols(side).Min > 0x0303 {
			v.leave(v.c.places[name], name, "weir proxy speaks TLS 1.2 and 1.3")
		}
	}
}

func quoteAll(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = quote(s)
	}
	return out
}

func (v *converter) sharing() {
	mode := v.c.Text("pool_mode")
	if mode == "transaction" {
		mode = "auto"
		v.line("# auto gives a connection to another client when nothing of the first is left on it.")
	}
	v.set("mode", mode)
	v.line("pool_size: " + strconv.Itoa(max(1, v.c.Number("default_pool_size"))))
	v.line("max_clients: " + strconv.Itoa(max(1, v.c.Number("max_client_conn"))))
	for _, n := range []struct{ from, to string }{
		{"min_pool_size", "min_pool_size"},
		{"reserve_pool_size", "reserve_pool_size"},
		{"max_db_connections", "max_db_connections"},
		{"max_user_connections", "max_user_connections"},
		{"max_db_client_connections", "max_db_client_connections"},
		{"max_user_client_connections", "max_user_client_connections"},
	} {
		if v.c.Number(n.from) > 0 {
			v.line(n.to + ": " + strconv.Itoa(v.c.Number(n.from)))
		}
	}
	const never = "87600h" // which weir proxy has no word for where a wait has to end
	for _, d := range []struct{ from, to, zero string }{
		{"query_wait_timeout", "queue_timeout", never},
		{"server_connect_timeout", "connect_timeout", never},
		{"client_login_timeout", "login_timeout", never},
		{"server_idle_timeout", "server_idle_timeout", never},
		{"server_lifetime", "server_lifetime", "1s"},
		{"query_timeout", "query_timeout", ""},
		{"transaction_timeout", "transaction_timeout", ""},
		{"idle_transaction_timeout", "idle_in_transaction_timeout", ""},
		{"client_idle_timeout", "client_idle_timeout", ""},
	} {
		switch t := v.c.Time(d.from); {
		case t > 0:
			v.line(d.to + ": " + span(t))
		case d.zero != "":
			v.line(d.to + ": " + d.zero)
		}
	}
	v.keepalive()
	if v.c.Number("reserve_pool_size") > 0 && v.c.Time("reserve_pool_timeout") > 0 {
		v.line("reserve_pool_timeout: " + span(v.c.Time("reserve_pool_timeout")))
	}
}

// keepalive writes the settings for dead peers that differ from weir's.
func (v *converter) keepalive() {
	k, own := v.c.Keepalive(), netloop.Keepalive{}.WithDefaults()
	if k.Off {
		v.line("tcp_keepalive: off")
	}
	for _, d := range []struct {
		to       string
		is, best time.Duration
	}{
		{"tcp_keepidle", k.Idle, own.Idle},
		{"tcp_keepintvl", k.Interval, own.Interval},
		{"tcp_user_timeout", k.UserTimeout, own.UserTimeout},
	} {
		if d.is != d.best {
			v.line(d.to + ": " + span(d.is))
		}
	}
	if k.Count != own.Count {
		v.line("tcp_keepcnt: " + strconv.Itoa(k.Count))
	}
}

// span formats a duration without the units that are zero.
func span(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// rules writes the limits of users and databases.
func (v *converter) rules() {
	var lines []string
	add := func(of, name string, keys ...any) {
		rule := fmt.Sprintf("  - {%s: %s", of, quote(name))
		for i := 0; i < len(keys); i += 2 {
			switch x := keys[i+1].(type) {
			case int:
				if x >= 0 {
					rule += fmt.Sprintf(", %s: %d", keys[i], x)
				}
			case time.Duration:
				if x > 0 {
					rule += fmt.Sprintf(", %s: %s", keys[i], span(x))
				}
			}
		}
		if strings.Contains(rule, ",") {
			lines = append(lines, rule+"}")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(v.c.Users)) {
		u := v.c.Users[name]
		if u.Mode != "" && u.Mode != v.c.Text("pool_mode") {
			v.leave(u.Place, "user "+strconv.Quote(name)+" has a pool_mode of its own", "run a weir proxy of its own for it")
		}
		add("user", name, "pool_size", u.PoolSize, "reserve_pool_size", u.ReservePoolSize, "max_user_connections", u.MaxConnections,
			"max_user_client_connections", u.MaxClients, "transaction_timeout", u.TransactionTimeout, "idle_in_transaction_timeout", u.IdleTransactionTimeout,
			"query_timeout", u.QueryTimeout, "client_idle_timeout", u.ClientIdleTimeout, "queue_timeout", u.QueryWaitTimeout)
	}
	for _, d := range v.c.byPlace() {
		if d.Name != "*" {
			add("database", d.Name, "pool_size", d.PoolSize, "min_pool_size", d.MinPoolSize, "reserve_pool_size", d.ReservePoolSize,
				"max_db_connections", d.MaxConnections, "max_db_client_connections", d.MaxClients, "queue_timeout", d.QueryWaitTimeout, "server_lifetime", d.ServerLifetime)
		}
	}
	if len(lines) > 0 {
		v.line("limits:")
		v.line(strings.Join(lines, "\n"))
	}
}

// rest is what is said elsewhere, or not at all.
func (v *converter) rest() {
	if v.c.Number("verbose") > 0 {
		v.line("log_level: debug")
	}
	for _, name := range []string{"logfile", "pidfile"} {
		if v.given(name) {
			v.line("# " + name + ": weir proxy logs to standard error and has no pidfile: its service manager keeps both.")
		}
	}
	for _, name := range []string{"login_notify_message", "server_fast_close"} {
		if v.given(name) {
			v.leave(v.c.places[name], name, "weir proxy has no such thing")
		}
	}
}
