package pgbouncer

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A kind is the type of a setting's value.
type kind uint8

const (
	text kind = iota
	number
	seconds // with a fraction; PgBouncer calls it a time
	switch_ // 0 or 1; any number is taken, as in PgBouncer
	authType
	poolMode
	tlsMode
	defer_ // yes, no or a number of seconds
)

// A setting is a setting of [pgbouncer] in PgBouncer 1.25.
type setting struct {
	name   string
	kind   kind
	def    string // "": none
	start  bool   // it holds until the process is started again
	sticky bool   // without a default: RELOAD leaves what SET gave it
	// idle is why weir accepts the setting without effect. With fits, it accepts only the
	// values that fits allows, and refuses others with the reason that fits returns.
	idle string
	fits func(value string) error
}

// settings are all settings, by name.
var settings = []setting{
	{name: "admin_users"},
	{name: "application_name_add_host", kind: switch_, def: "0", fits: off("clients would see another application_name; weir shows each client's own to the server")},
	{name: "auth_dbname", sticky: true},
	{name: "auth_file", sticky: true},
	{name: "auth_hba_file"},
	{name: "auth_ident_file", sticky: true},
	{name: "auth_ldap_options", sticky: true},
	{name: "auth_query", def: "SELECT rolname, CASE WHEN rolvaliduntil < now() THEN NULL ELSE rolpassword END FROM pg_authid WHERE rolname=$1 AND rolcanlogin"},
	{name: "auth_type", kind: authType, def: "md5"},
	{name: "auth_user", sticky: true},
	{name: "autodb_idle_timeout", kind: seconds, def: "3600"},
	{name: "cancel_wait_timeout", kind: seconds, def: "10", idle: "weir's cancel requests wait for no pool; server_connect_timeout bounds them"},
	{name: "client_idle_timeout", kind: seconds, def: "0"},
	{name: "client_login_timeout", kind: seconds, def: "60"},
	{name: "client_tls13_ciphers", sticky: true, fits: ciphers13},
	{name: "client_tls_ca_file"},
	{name: "client_tls_cert_file"},
	{name: "client_tls_ciphers", def: "default", fits: ciphers},
	{name: "client_tls_dheparams", def: "auto", idle: "Go's TLS has no finite-field Diffie-Hellman"},
	{name: "client_tls_ecdhcurve", def: "auto", fits: oneOf("weir takes the curves that Go's TLS prefers", "auto")},
	{name: "client_tls_key_file"},
	{name: "client_tls_protocols", def: "secure", fits: protocols},
	{name: "client_tls_sslmode", kind: tlsMode, def: "disable"},
	{name: "conffile", sticky: true, idle: "weir reads the file again that it was started with"},
	{name: "default_pool_size", kind: number, def: "20"},
	{name: "disable_pqexec", kind: switch_, def: "0", start: true, fits: off("weir does not refuse simple queries")},
	{name: "dns_max_ttl", kind: seconds, def: "15", idle: "weir resolves a name when it connects, and the system's resolver caches"},
	{name: "dns_nxdomain_ttl", kind: seconds, def: "15", idle: "weir resolves a name when it connects, and the system's resolver caches"},
	{name: "dns_zone_check_period", kind: seconds, def: "0", idle: "weir resolves a name when it connects"},
	{name: "idle_transaction_timeout", kind: seconds, def: "0"},
	{name: "ignore_startup_parameters"},
	{name: "job_name", def: "pgbouncer", start: true, idle: "it names the process in syslog, which weir does not write to"},
	{name: "listen_addr", start: true},
	{name: "listen_backlog", kind: number, def: "128", start: true, idle: "weir listens with the system's limit (net.core.somaxconn)"},
	{name: "listen_port", kind: number, def: "6432", start: true},
	{name: "log_connections", kind: switch_, def: "1"},
	{name: "log_disconnections", kind: switch_, def: "1"},
	{name: "log_pooler_errors", kind: switch_, def: "1"},
	{name: "log_stats", kind: switch_, def: "1", idle: "SHOW STATS and the metrics have them"},
	{name: "logfile"},
	{name: "login_notify_message"},
	{name: "max_client_conn", kind: number, def: "100"},
	{name: "max_db_client_connections", kind: number, def: "0"},
	{name: "max_db_connections", kind: number, def: "0"},
	{name: "max_packet_size", kind: number, def: "2147483647"},
	{name: "max_prepared_statements", kind: number, def: "200"},
	{name: "max_user_client_connections", kind: number, def: "0"},
	{name: "max_user_connections", kind: number, def: "0"},
	{name: "min_pool_size", kind: number, def: "0"},
	{name: "peer_id", kind: number, def: "0"},
	{name: "pidfile", start: true},
	{name: "pkt_buf", kind: number, def: "4096", start: true, idle: "weir's buffers grow and shrink by themselves"},
	{name: "pool_mode", kind: poolMode, def: "session"},
	{name: "pool_idle_timeout", kind: seconds, def: "0", idle: "a pool without connections costs weir nothing, and keeps its statistics"},
	{name: "query_timeout", kind: seconds, def: "0"},
	{name: "query_wait_notify", kind: number, def: "5"},
	{name: "query_wait_timeout", kind: seconds, def: "120"},
	{name: "reserve_pool_size", kind: number, def: "0"},
	{name: "reserve_pool_timeout", kind: seconds, def: "5"},
	{name: "resolv_conf", start: true, fits: empty("weir resolves names as the system does")},
	{name: "sbuf_loopcnt", kind: number, def: "5", idle: "weir divides the time of its event loops by itself"},
	{name: "scram_iterations", kind: number, def: "4096", idle: "it matters for secrets that weir makes itself, of passwords in plain text: those have 4096"},
	{name: "server_check_delay", kind: seconds, def: "30", idle: "weir sees at once when the server closes a connection, and asks on none before it is used"},
	{name: "server_check_query", def: "<empty>", idle: "see server_check_delay"},
	{name: "server_connect_timeout", kind: seconds, def: "15"},
	{name: "server_fast_close", kind: switch_, def: "0"},
	{name: "server_idle_timeout", kind: seconds, def: "600"},
	{name: "server_lifetime", kind: seconds, def: "3600"},
	{name: "server_login_retry", kind: seconds, def: "15", idle: "weir tries again by itself, less and less often, at most a second apart"},
	{name: "server_reset_query", def: "DISCARD ALL", idle: "weir gives a connection to another client only when it is proven that nothing of the first is left on it"},
	{name: "server_reset_query_always", kind: switch_, def: "0", idle: "see server_reset_query"},
	{name: "server_round_robin", kind: switch_, def: "0", idle: "weir uses the connection whose settings fit, else the one that was used last"},
	{name: "server_tls13_ciphers", sticky: true, fits: ciphers13},
	{name: "server_tls_ca_file"},
	{name: "server_tls_cert_file"},
	{name: "server_tls_ciphers", def: "default", fits: ciphers},
	{name: "server_tls_key_file"},
	{name: "server_tls_protocols", def: "secure", fits: protocols},
	{name: "server_tls_sslmode", kind: tlsMode, def: "prefer"},
	{name: "service_name", sticky: true, idle: "another name of job_name"},
	{name: "so_reuseport", kind: switch_, def: "0", start: true},
	{name: "stats_period", kind: number, def: "60", idle: "weir's averages are of its own periods"},
	{name: "stats_users"},
	{name: "suspend_timeout", kind: seconds, def: "10", idle: "SUSPEND waits for as long as its client does"},
	{name: "syslog", kind: switch_, def: "0", fits: off("weir does not write to syslog: use logfile, or a service manager that collects standard error")},
	{name: "syslog_facility", def: "daemon", idle: "see syslog"},
	{name: "syslog_ident", def: "pgbouncer", idle: "see syslog"},
	{name: "tcp_defer_accept", kind: defer_, def: "45", idle: "a connection that says nothing costs weir a goroutine until client_login_timeout"},
	{name: "tcp_keepalive", kind: switch_, def: "1"},
	{name: "tcp_keepcnt", kind: number, def: "0", fits: atMost(127)},
	{name: "tcp_keepidle", kind: number, def: "0", fits: atMost(32767)},
	{name: "tcp_keepintvl", kind: number, def: "0", fits: atMost(32767)},
	{name: "tcp_socket_buffer", kind: number, def: "0", idle: "weir leaves the size of socket buffers to the system"},
	{name: "tcp_user_timeout", kind: number, def: "0", fits: atMost(1<<31 - 1)},
	{name: "track_extra_parameters", def: "IntervalStyle", start: true, idle: "weir restores all settings of a session, not only those that are listed"},
	{name: "transaction_timeout", kind: seconds, def: "0"},
	{name: "unix_socket_dir", def: "/tmp", start: true},
	{name: "unix_socket_group", start: true},
	{name: "unix_socket_mode", kind: number, def: "0777", start: true},
	{name: "user", start: true, sticky: true, fits: empty("weir does not change the user that it runs as: start it as that one")},
	{name: "verbose", kind: number, sticky: true},
}

// find returns the setting of a name, nil if PgBouncer has none.
func find(name string) *setting {
	i := slices.IndexFunc(settings, func(s setting) bool { return s.name == name })
	if i < 0 {
		return nil
	}
	return &settings[i]
}

// check checks a value.
func (s *setting) check(value string) error {
	var err error
	switch s.kind {
	case number:
		_, err = parseNumber(value)
	case switch_:
		_, err = parseNumber(value)
	case seconds:
		_, err = parseSeconds(value)
	case defer_:
		if value != "yes" && value != "no" {
			_, err = parseNumber(value)
		}
	case authType:
		err = checkAuthType(value)
	case poolMode:
		err = word(value, "session", "transaction", "statement")
	case tlsMode:
		err = word(value, "disable", "allow", "prefer", "require", "verify-ca", "verify-full")
	}
	if err == nil && s.fits != nil && value != s.def {
		err = s.fits(value)
	}
	return err
}

// note returns why a setting has no effect, "" if it has one.
func (s *setting) note() string { return s.idle }

func word(value string, words ...string) error {
	if slices.Contains(words, value) {
		return nil
	}
	return fmt.Errorf("want %s", strings.Join(words, ", "))
}

func checkAuthType(value string) error {
	if value == "pam" {
		return errors.New("weir has no pam: use ldap, scram-sha-256, md5, cert, hba or auth_query")
	}
	return word(value, "any", "trust", "plain", "md5", "cert", "hba", "ldap", "scram-sha-256")
}

var (
	errNumber  = errors.New("want a whole number")
	errSeconds = errors.New("want a number of seconds, 0 or more")
)

// parseNumber reads a whole number, in any base that C knows.
func parseNumber(value string) (int, error) {
	n, err := strconv.ParseInt(value, 0, 64)
	if err != nil || n > math.MaxUint32 || n < math.MinInt32 {
		return 0, errNumber
	}
	return int(n), nil
}

func parseSeconds(value string) (time.Duration, error) {
	f, err := strconv.ParseFloat(value, 64)
	if err != nil || !(f >= 0 && f < 1e9) {
		return 0, errSeconds
	}
	return time.Duration(f * float64(time.Second)), nil
}

// atMost returns a check for numbers up to a maximum.
func atMost(most int) func(string) error {
	return func(value string) error {
		if n, err := parseNumber(value); err != nil || n < 0 || n > most {
			return fmt.Errorf("want 0 to %d", most)
		}
		return nil
	}
}

func off(why string) func(string) error {
	return func(value string) error {
		if n, err := parseNumber(value); err == nil && n == 0 {
			return nil
		}
		return fmt.Errorf("%s: set it to 0", why)
	}
}

func empty(why string) func(string) error {
	return func(value string) error {
		if value == "" {
			return nil
		}
		return fmt.Errorf("%s: take the setting out", why)
	}
}

func oneOf(why string, words ...string) func(string) error {
	return func(value string) error {
		if slices.Contains(words, value) {
			return nil
		}
		return fmt.Errorf("%s: set it to %s", why, strings.Join(words, " or "))
	}
}

// ciphers allows values that leave the choice of ciphers to the library. Others restrict
// it, and weir would accept what the configuration forbids.
func ciphers(value string) error {
	return oneOf("weir takes Go's choice of ciphers, which has none that are known to be weak", "default", "secure", "fast", "normal", "all")(value)
}

// tls13 are the ciphers of TLS 1.3. Go always offers all of them.
var tls13 = []string{"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}

func ciphers13(value string) error {
	if value == "" {
		return nil
	}
	for name := range strings.SplitSeq(value, ":") {
		if !slices.Contains(tls13, name) {
			return fmt.Errorf("failed to set the TLSv1.3 cipher suites: %q is none of %s", name, strings.Join(tls13, ", "))
		}
	}
	if list := strings.Split(value, ":"); len(list) < len(tls13) {
		return errors.New("the TLS of Go offers all ciphers of TLS 1.3, of which none is weak: take the setting out")
	}
	return nil
}

// A TLSRange is a range of TLS versions: 0x0301 to 0x0304.
type TLSRange struct{ Min, Max uint16 }

// parseProtocols reads client_tls_protocols and server_tls_protocols.
func parseProtocols(value string) (r TLSRange, err error) {
	versions := map[string][]uint16{
		"secure": {0x0303, 0x0304}, "all": {0x0301, 0x0302, 0x0303, 0x0304}, "legacy": {0x0301, 0x0302, 0x0303, 0x0304},
		"default": {0x0303, 0x0304}, "tlsv1": {0x0301, 0x0302, 0x0303, 0x0304},
		"tlsv1.0": {0x0301}, "tlsv1.1": {0x0302}, "tlsv1.2": {0x0303}, "tlsv1.3": {0x0304},
	}
	on := make(map[uint16]bool)
	for w := range strings.FieldsFuncSeq(value, func(c rune) bool { return strings.ContainsRune(" ,:", c) }) {
		list, ok := versions[strings.TrimPrefix(w, "!")]
		if !ok {
			return r, fmt.Errorf("%q: want all, secure, or some of tlsv1.0 to tlsv1.3", w)
		}
		for _, v := range list {
			on[v] = !strings.HasPrefix(w, "!")
		}
	}
	for v := uint16(0x0301); v <= 0x0304; v++ {
		if on[v] {
			r.Min = cmp.Or(r.Min, v)
			r.Max = v
		}
	}
	if r.Max == 0 {
		return r, errors.New("no version is left")
	}
	for v := r.Min; v <= r.Max; v++ {
		if !on[v] {
			return r, errors.New("weir speaks all versions between the lowest and the highest: name those between as well")
		}
	}
	return r, nil
}

func protocols(value string) error {
	_, err := parseProtocols(value)
	return err
}
