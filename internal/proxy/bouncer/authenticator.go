package bouncer

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/ldap"
	"github.com/weirdb/weir/internal/proxy/pgbouncer"
	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/userlist"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A state is the current configuration with the contents of its files. It is replaced,
// never changed.
type state struct {
	*pgbouncer.Config
	users  map[string]pgwire.Secret // of auth_file
	hashes map[string]string        // of these, the md5 hashes
	client tlsSide
	server tlsSide
	ldap   *ldap.Directory                     // of auth_type ldap
	ldaps  map[*pgbouncer.Rule]*ldap.Directory // of rules
}

// load reads the files that a configuration names.
func load(cfg *pgbouncer.Config) (*state, error) {
	st := &state{Config: cfg, users: make(map[string]pgwire.Secret), hashes: make(map[string]string)}
	list, err := userlist.Read(cfg.Text("auth_file"), func(name, secret string) (postgres.User, error) {
		s, err := pgwire.ParseSecret(secret)
		if hash, ok := strings.CutPrefix(secret, "md5"); ok && len(hash) == 32 {
			st.hashes[name] = hash
		}
		return postgres.User{Name: name, Secret: s}, err
	})
	if err != nil {
		return nil, &fileError{"auth_file", err}
	}
	for _, u := range list {
		st.users[u.Name] = u.Secret
	}
	if err := st.loadLDAP(); err != nil {
		return nil, err
	}
	if st.client, err = loadTLS(cfg, "client"); err != nil {
		return nil, err
	}
	st.server, err = loadTLS(cfg, "server")
	return st, err
}

// loadLDAP returns the LDAP servers that the configuration names.
func (st *state) loadLDAP() (err error) {
	st.ldap, st.ldaps = nil, nil // of the configuration before
	if st.LDAP != nil {
		if st.ldap, err = ldap.New(st.LDAP, "", 0); err != nil {
			return &fileError{"auth_ldap_options", err}
		}
	}
	if st.HBA == nil {
		return nil
	}
	st.ldaps = make(map[*pgbouncer.Rule]*ldap.Directory)
	for i := range st.HBA.Rules {
		r := &st.HBA.Rules[i]
		if r.LDAP == nil {
			continue
		}
		if st.ldaps[r], err = ldap.New(r.LDAP, "", 0); err != nil {
			return &fileError{"auth_hba_file", fmt.Errorf("line %d: %w", r.Line, err)}
		}
	}
	return nil
}

// fileError is the error of an unusable file of the configuration.
type fileError struct {
	setting string
	err     error
}

func (e *fileError) Error() string { return e.setting + ": " + e.err.Error() }
func (e *fileError) Unwrap() error { return e.err }

// An authenticator is the postgres.Authenticator. Safe for concurrent use.
type authenticator struct {
	b     *Bouncer
	state atomic.Pointer[state]
	turn  atomic.Uint32 // of hosts
	ids   atomic.Uint32
	// cancels holds one element for each request to cancel that is being passed on.
	cancels chan struct{}

	mu       sync.Mutex
	clients  map[string]int           // guarded by mu: by database
	ofUser   map[string]int           // guarded by mu: by user
	looked   map[string]bool          // guarded by mu: users whom auth_query has found
	autos    map[string]bool          // guarded by mu: databases that * has brought
	good     map[string]int           // guarded by mu: of several hosts, the one last reached
	consoles map[*console]struct{}    // guarded by mu
	tunnels  map[string]chan struct{} // guarded by mu: replication connections, by database
}

func newAuthenticator(b *Bouncer, st *state) *authenticator {
	d := &authenticator{
		b: b, cancels: make(chan struct{}, cancelSlots), clients: make(map[string]int), ofUser: make(map[string]int), looked: make(map[string]bool),
		autos: make(map[string]bool), good: make(map[string]int), consoles: make(map[*console]struct{}), tunnels: make(map[string]chan struct{}),
	}
	d.state.Store(st)
	return d
}

// database returns the database of a name, except "pgbouncer", and remembers one that
// comes from *.
func (d *authenticator) database(st *state, name string) (*pgbouncer.Database, bool) {
	db, ok := st.Database(name)
	if _, listed := st.Databases[name]; ok && !listed {
		d.mu.Lock()
		known := d.autos[name]
		d.autos[name] = true
		d.mu.Unlock()
		if !known {
			d.b.log.Info("registered new auto-database: db=" + name)
		}
	}
	return db, ok
}

// names returns the names of the databases.
func (d *authenticator) names(st *state) map[string]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := make(map[string]bool)
	if st.Auto != nil {
		maps.Copy(names, d.autos)
	}
	for name := range st.Databases {
		names[name] = true
	}
	return names
}

// Route implements postgres.Authenticator.
func (d *authenticator) Route(database, user string) postgres.Route {
	st := d.state.Load()
	db, ok := d.database(st, database)
	if !ok {
		return postgres.Route{}
	}
	r := postgres.Route{Hosts: st.hosts(db), Setup: db.ConnectQuery}
	switch {
	case len(r.Hosts) < 2:
	case db.RoundRobin:
		r.From = int(d.turn.Add(1)-1) % len(r.Hosts)
	default:
		d.mu.Lock()
		r.From = d.good[db.Name] % len(r.Hosts)
		d.mu.Unlock()
		r.Chosen = func(host int) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.good[db.Name] = host
		}
	}
	for i := range r.Hosts {
		if user == db.User {
			r.Hosts[i].Password = db.Password
		}
		if hash := st.hashes[user]; hash != "" {
			r.Hosts[i].Keys = &pgwire.ClientKeys{MD5: hash}
		}
	}
	return r
}

// hosts returns the servers of a database.
func (st *state) hosts(db *pgbouncer.Database) []pgwire.ConnectConfig {
	name := db.DBName
	if name == "" {
		name = db.Name
	}
	var params []pgwire.Param
	for _, p := range db.Params {
		params = append(params, pgwire.Param{Name: p[0], Value: p[1]})
	}
	list := make([]pgwire.ConnectConfig, 0, len(db.Hosts))
	for _, h := range db.Hosts {
		list = append(list, pgwire.ConnectConfig{
			Address: pgbouncer.Address(h, db.Port), Database: name, Params: params, TLSMode: st.server.mode, TLSConfig: st.server.config,
			Timeout: st.Time("server_connect_timeout"), Dial: st.Keepalive().Dial,
		})
	}
	return list
}

// cancelPatience bounds a cancel request that goes to a peer, and cancelSlots how many are
// forwarded at a time: peers with confused ids would forward them in a circle for ever.
const (
	cancelPatience = 10 * time.Second
	cancelSlots    = 64
)

// Cancel implements postgres.Authenticator: the client may be a peer's.
func (d *authenticator) Cancel(ctx context.Context, id uint32, secret []byte) {
	st := d.state.Load()
	peer, ok := st.Peers[int(id>>peerShift)]
	if !ok || peer.ID == st.Number("peer_id") {
		return
	}
	select {
	case d.cancels <- struct{}{}:
		defer func() { <-d.cancels }()
	default:
		return
	}
	ctx, done := context.WithTimeout(ctx, cancelPatience)
	defer done()
	to := pgwire.ConnectConfig{Address: pgbouncer.Address(peer.Host, peer.Port), TLSMode: pgwire.TLSDisable}
	if err := pgwire.Cancel(ctx, to, id, secret); err != nil {
		d.b.log.Warn("request to cancel was not passed on", "peer", peer.ID, "error", err)
	}
}

// peerShift is where the id of a peer begins in those of its clients.
const peerShift = 16

// local reports whether a client is a process of weir's own user on a Unix socket.
func local(conn net.Conn) bool {
	uid, ok := core.PeerUID(conn)
	return ok && uid == uint32(os.Geteuid())
}

// NewID implements postgres.Authenticator. Clients and server connections are numbered as they
// come; those of a peer begin with its id.
func (d *authenticator) NewID() uint32 {
	n := d.ids.Add(1)
	if peer := d.state.Load().Number("peer_id"); peer > 0 {
		return uint32(peer)<<peerShift | n&(1<<peerShift-1)
	}
	return n & (1<<31 - 1)
}
