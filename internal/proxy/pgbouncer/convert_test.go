package pgbouncer

import (
	"strings"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/netloop"
)

func TestConvert(t *testing.T) {
	c := mustParse(t, `
[databases]
shop = host=db.example.com port=5433 pool_size=30 max_db_connections=60
* = host=db.example.com port=5433
[users]
importer = pool_size=4 query_wait_timeout=600
[pgbouncer]
listen_addr = *
auth_type = scram-sha-256
auth_file = /etc/userlist.txt
auth_user = weir
admin_users = dba, it's
pool_mode = transaction
max_client_conn = 500
server_lifetime = 0
idle_transaction_timeout = 300
tcp_keepidle = 120
tcp_keepcnt = 3
tcp_user_timeout = 12500
pkt_buf = 8192
`)
	v := c.Convert()
	want := `postgres: 'postgres://weir@db.example.com:5433/postgres?sslmode=prefer'
listen_postgres: '0.0.0.0:6432'
auth: scram-sha-256
auth_file: /etc/userlist.txt
auth_query: 'SELECT rolname, CASE WHEN rolvaliduntil < now() THEN NULL ELSE rolpassword END FROM pg_authid WHERE rolname=$1 AND rolcanlogin'
admin_users: [dba, 'it''s']
# auto gives a connection to another client when nothing of the first is left on it.
mode: auto
pool_size: 20
max_clients: 500
queue_timeout: 2m
connect_timeout: 15s
login_timeout: 1m
server_idle_timeout: 10m
server_lifetime: 1s
idle_in_transaction_timeout: 5m
tcp_keepidle: 2m
tcp_user_timeout: 12.5s
tcp_keepcnt: 3
limits:
  - {user: importer, pool_size: 4, queue_timeout: 10m}
  - {database: shop, pool_size: 30, max_db_connections: 60}

# a.ini:20: pkt_buf has no effect in weir: weir's buffers grow and shrink by themselves
`
	if v.YAML != want || len(v.Left) > 0 {
		t.Errorf("left %q, got\n%s", v.Left, v.YAML)
	}
}

// A file's settings of dead peers hold; those that it leaves to the system are weir's own.
func TestKeepalive(t *testing.T) {
	for text, want := range map[string]netloop.Keepalive{
		"":                                       {},
		"tcp_keepalive=0\ntcp_user_timeout=1500": {Off: true, UserTimeout: 1500 * time.Millisecond},
		"tcp_keepidle=60\ntcp_keepintvl=7\ntcp_keepcnt=2": {Idle: time.Minute, Interval: 7 * time.Second, Count: 2},
	} {
		c := mustParse(t, "[databases]\na=host=x\n[pgbouncer]\n"+text)
		if got := c.Keepalive(); got != want.WithDefaults() || got.Validate() != nil || len(c.Notes) > 0 {
			t.Errorf("%q: %+v, %v, notes %v", text, got, got.Validate(), c.Notes)
		}
		if off := strings.Contains(c.Convert().YAML, "\ntcp_keepalive: off\n"); off != want.Off {
			t.Errorf("%q is converted to\n%s", text, c.Convert().YAML)
		}
	}
}

// Settings that weir.yaml cannot express are listed with their place and what to do.
func TestConvertLeaves(t *testing.T) {
	for _, x := range []struct{ text, want string }{
		{"[databases]\na=host=x\nb=host=y", `a.ini:3: database "b" is on another server: run one`},
		{"[databases]\na=host=x dbname=b", `a.ini:2: database "a" has another name on the server: have clients connect to "b"`},
		{"[databases]\na=host=x user=u", `is used as user "u"`},
		{"[databases]\na=host=x timezone=UTC", "has settings of its own"},
		{"[databases]\na=host=x auth_user=u", "looks its users up in its own way"},
		{"[databases]\na=host=x,y", "takes its hosts in turn"},
		{"[databases]\na=host=x pool_mode=statement", "has a pool_mode of its own"},
		{"[users]\na=pool_mode=statement\n[databases]\na=host=x", `user "a" has a pool_mode of its own`},
		{"[databases]\na=host=x\n[pgbouncer]\nstats_users=w", "a.ini:4: stats_users: who may open"},
		{"[databases]\na=host=x\n[pgbouncer]\nauth_type=any", "a.ini:4: auth_type any: choose"},
		{"[databases]\na=host=x\n[pgbouncer]\nlogin_notify_message=hello", "login_notify_message: weir proxy has no such thing"},
		{"[databases]\na=host=x\n[pgbouncer]\nserver_tls_protocols=tlsv1.1", "server_tls_protocols: weir proxy speaks TLS 1.2 and 1.3"},
		{"[databases]\na=host=x\n[pgbouncer]\npeer_id=3", "peers: see --peer-id"},
		{"[pgbouncer]", "there is no database"},
	} {
		v := mustParse(t, x.text).Convert()
		if !strings.Contains(strings.Join(v.Left, "\n"), x.want) || !strings.Contains(v.YAML, "# NOT CONVERTED: ") {
			t.Errorf("%q: %q, want %q", x.text, v.Left, x.want)
		}
	}
}
