package mysql

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// Engine is the name of this side of the proxy in metrics and reports.
const Engine = "mysql"

func errShutdown() *mywire.Error {
	return mywire.NewError(mywire.ErrServerShutdown, "weir is stopping")
}

// Server is the MySQL side of the proxy: a listener, logins, and the event loops that run
// everything else.
type Server struct {
	core.Server[*loop]

	config atomic.Pointer[Config] // replaced as a whole, never modified
	lobby  netloop.Lobby          // clients that have not sent their login yet
	creds  *core.Credentials[mywire.Secret, mywire.ClientKeys]

	lastID atomic.Uint32 // of the client ids
	asker  healthChecker

	hosts
	dialer
	lookups *lookups
	grants  grants
	blind   sync.Map // accounts for which the log already says that they see no triggers
}

// New checks the configuration and starts to listen; Run serves.
func New(cfg Config) (*Server, error) {
	if err := cfg.withDefaults().validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	s := new(Server)
	s.config.Store(&cfg)
	s.Process, s.Sockets = cfg.Process, cfg.Sockets
	s.hosts = hosts{srv: s, roles: upstream.NewKept(func(conn *mywire.Server) { _ = conn.Close() })}
	s.dialer.srv, s.dialer.tries = s, make(chan struct{}, maxTries)
	s.creds, s.lookups = newCredentials(&cfg), newLookups(s)
	s.grants.seed = maphash.MakeSeed()
	s.Meet, s.CanMeet = s.meet, func() bool { return canMeet(s) }
	if err := s.Open(Engine, cfg.Listen, s, func() (*loop, error) { return newLoop(s) }); err != nil {
		return nil, err
	}
	return s, nil
}

// Reload replaces the configuration. What can only be chosen at the start stays: the server
// (except for the password and the certificates with which weir logs in there, see
// Config.Renewed), the address for clients, the certificate (its owner replaces it), and what
// Options.Reload and the command's help name. Sessions stay. Reload is safe for concurrent use,
// except with itself.
func (s *Server) Reload(cfg Config) error {
	now := s.cfg()
	cfg = cfg.withDefaults()
	cfg.Options = cfg.Options.Reload(now.Options)
	cfg.MySQL, cfg.Hosts, _ = now.Renewed(&cfg)
	cfg.Listen, cfg.TrustFunctions, cfg.Target = now.Listen, now.TrustFunctions, now.Target
	cfg.ClientTLS, cfg.Process = now.ClientTLS, now.Process
	if cfg.ownDial = now.ownDial; cfg.ownDial {
		cfg.MySQL.Dial = cfg.Keepalive.Dial
	}
	if err := cfg.validate(); err != nil {
		return err
	}
	s.config.Store(&cfg)
	s.SetUsers(cfg.Users)
	s.Reloaded(func(l *loop) { l.cfg = &cfg })
	return nil
}

// cfg returns the current configuration.
func (s *Server) cfg() *Config { return s.config.Load() }

// Run serves until ctx ends. Then it accepts no new clients, gives open transactions at most
// DrainTimeout to finish, closes everything and returns.
func (s *Server) Run(ctx context.Context) error {
	defer s.asker.close()
	defer s.lookups.idle.Close()
	defer s.roles.Close()
	return s.Serve(ctx, s.login)
}

// firstID is the first connection id that weir gives to clients. The ids are far above the
// server's own, so that the number in a KILL shows which of the two it means. They stay below
// 1<<31: MariaDB Connector/J, for one, reads the id as a signed number, and could not kill
// anything.
const firstID = 1 << 30

// isOurs reports whether a connection id is one that weir gives to clients.
func isOurs(id uint64) bool { return id >= firstID && id < 2*firstID }

// A connection id is firstID, the number of this weir among its peers, and a serial number.
const (
	peerShift = 24
	serials   = 1 << peerShift
)

// peerOf returns the number of the weir that gave a client its connection id.
func peerOf(id uint32) int { return int(id >> peerShift & session.MaxPeer) }

// register gives a client of a loop its connection id.
func (s *Server) register(l *loop) uint32 {
	peer := uint32(s.cfg().PeerID)
	return s.Register(l, func() uint32 {
		if peer == 0 {
			return firstID | s.lastID.Add(1)%firstID
		}
		return firstID | peer<<peerShift | s.lastID.Add(1)%serials
	})
}
