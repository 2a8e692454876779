package postgres

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/postgres/catalogue"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/upstream"
	"github.com/weirdb/weir/internal/wire/pgwire"
)

// Engine is the name of this side of the proxy in metrics and reports.
const Engine = "postgresql"

func errShutdown() *pgwire.Error {
	return pgwire.NewFatal(pgwire.CodeAdminShutdown, "terminating connection because weir is stopping")
}

// errShutdown is the end of a session when weir stops.
func (l *loop) errShutdown() *pgwire.Error {
	if l.cfg.Authenticator != nil {
		return pgwire.NewFatal(pgwire.CodeAdminShutdown, "server shutting down")
	}
	return errShutdown()
}

// Server is this side of the proxy: a listener, logins, and the event loops that
// everything else happens on.
type Server struct {
	core.Server[*loop]

	config atomic.Pointer[Config] // never changed, but replaced
	lobby  netloop.Lobby          // clients that have not said who they are
	creds  credentials

	// Way is for the configuration's Authenticator, if it has one.
	Way AuthServices

	lookups    *lookups
	verdicts   verdicts
	roleChecks roleChecks
	away       availability
	hubs       hubs
	known      *catalogue.Known

	identities identities
	hosts
}

// New checks the configuration and starts to listen; Run serves.
func New(cfg Config) (*Server, error) {
	if err := cfg.withDefaults().validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	s := new(Server)
	s.config.Store(&cfg)
	s.Way.s = s
	if s.known = cfg.known; s.known == nil {
		s.known = new(catalogue.Known)
	}
	s.Process, s.Sockets = cfg.Process, cfg.Sockets
	s.hosts = hosts{srv: s, roles: upstream.NewKept(func(be *pgwire.Backend) { _ = be.Conn.Close() })}
	s.creds.init(&cfg)
	s.away.init()
	if err := s.Open(Engine, cfg.Listen, s, func() (*loop, error) { return newLoop(s) }); err != nil {
		return nil, err
	}
	s.lookups = newLookups(s)
	if cfg.Authenticator == nil { // which may wait for much
		s.Meet, s.CanMeet = s.meet, func() bool { return s.cfg().Audit == nil } // whose lines are waited for
	}
	return s, nil
}

// Reload puts another configuration in force. What can only be chosen at the start
// stays as it was: the server (but for the password and the certificates by which weir logs
// in there, see Config.Renewed), where clients connect, the certificate (whose owner replaces it), and what
// Options.Reload and the command's help say. Sessions stay.
// Safe for concurrent use, but for other calls of Reload.
func (s *Server) Reload(cfg Config) error {
	now := s.cfg()
	cfg = cfg.withDefaults()
	cfg.Options = cfg.Options.Reload(now.Options)
	cfg.Postgres, cfg.Hosts, _ = now.Renewed(&cfg)
	cfg.Listen, cfg.TrustFunctions, cfg.Target, cfg.Patroni = now.Listen, now.TrustFunctions, now.Target, now.Patroni
	if cfg.Process = now.Process; cfg.Authenticator == nil {
		cfg.ClientTLS = now.ClientTLS
	}
	if cfg.ownDial = now.ownDial; cfg.ownDial {
		cfg.Postgres.Dial = cfg.Keepalive.Dial
	}
	if err := cfg.validate(); err != nil {
		return err
	}
	s.config.Store(&cfg)
	s.SetUsers(cfg.Users)
	s.Reloaded(func(l *loop) { l.cfg = &cfg })
	return nil
}

// cfg is the configuration in force.
func (s *Server) cfg() *Config { return s.config.Load() }

// Run serves until ctx ends. Then it takes no new clients, lets transactions
// under way finish for at most DrainTimeout, closes everything and returns.
func (s *Server) Run(ctx context.Context) error {
	defer s.lookups.close()
	defer s.roles.Close()
	return s.Serve(ctx, s.login)
}

// A client's number, which clients take for a process ID, has 31 bits. Where there are
// several weirs the first six are the number of the client's own.
const (
	peerShift = 25
	// forwarded is set in the number of a cancel request that another weir passes on:
	// it goes no further.
	forwarded = 1 << 31
	// abovePIDs is set in every number: no process of the server has one as high, so that
	// no notification of another session looks like the client's own.
	abovePIDs = 1 << 24
)

// peerOf is the number of the weir that gave a client its number.
func peerOf(id uint32) int { return int(id >> peerShift & session.MaxPeer) }

// longSecret is the length of the secrets that PostgreSQL 18 gives by protocol 3.2; 4
// bytes is all that 3.0 has room for.
const (
	longSecret  = 32
	shortSecret = 4
)

// register gives a client of a loop, which speaks a version of the protocol, what it
// names itself by in cancel requests.
func (s *Server) register(l *loop, version uint32) (id uint32, secret []byte, err error) {
	var b [4]byte
	id = s.Register(l, func() uint32 {
		if d := s.cfg().Authenticator; d != nil {
			return d.NewID()
		}
		if _, e := rand.Read(b[:]); e != nil {
			err = e
		}
		n := binary.BigEndian.Uint32(b[:])>>1 | abovePIDs
		if peer := s.cfg().PeerID; peer > 0 {
			n = n&(1<<peerShift-1) | uint32(peer)<<peerShift
		}
		return n
	})
	secret = make([]byte, shortSecret)
	if version >= pgwire.Version32 {
		secret = make([]byte, longSecret)
	}
	if _, e := rand.Read(secret); e != nil {
		err = e
	}
	if err != nil {
		s.Forget(id)
		return 0, nil, fmt.Errorf("make cancel key: %w", err)
	}
	return id, secret, nil
}
