package resp

import (
	"errors"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Backend is the store that a Server speaks for. Its methods are called by many
// goroutines.
type Backend interface {
	// Open begins the session of a new connection. The server closes it once.
	Open(replies Replies) Session
	// Status is the newest known state of the cluster. It is cheap, and what it
	// returns is not changed any more.
	Status() *Status
}

// Replies is the connection's side of a Session.
type Replies interface {
	// Flush says that the turn's calls of Reply.Done are over: what is complete
	// is sent. Every Done is followed by a Flush of its connection, sooner rather
	// than later. It does not block.
	Flush()
}

// Session is a connection's side of the store. One goroutine at a time calls its
// methods.
//
// Requests take effect in the order of Do: a read observes the writes handed in
// before it, answered or not, and writes are ordered as they were handed in.
type Session interface {
	// Do takes the requests of a part of a pipeline. The slice, and all memory
	// that its commands refer to, belong to the caller again when Do returns: the
	// session encodes them. It does not block. For each request Reply.Done is
	// called exactly once, by any goroutine, in any order, also from within Do;
	// for those completed within Do no Flush is needed.
	Do(batch []Request)
	// Wait completes reply with Number = how many replicas besides the leader
	// have the writes handed in before on disk, as soon as it is at least
	// replicas, or timeout has passed (0: never).
	Wait(replicas int, timeout time.Duration, reply *Reply)
	// Token is a lower bound of what this session has seen, and Advance makes it
	// at least as new as another session's token. Any goroutine calls Token.
	Token() (view, index uint64)
	Advance(view, index uint64)
	// Resume says that there is room for answers that found none before, see
	// Reply.Takes. Any goroutine calls it.
	Resume()
	// Close ends the session. Requests under way may complete or not.
	Close()
}

// Level is the consistency that a request asks for.
type Level uint8

const (
	// Strong requests are linearizable.
	Strong Level = iota
	// OwnSession reads are answered by this replica and see all that the session
	// has seen or written; writes are weak where their footprint is
	// wire.Footprint.Blind, and strong otherwise.
	OwnSession
	// Local reads are answered from what this replica has applied; writes are as
	// in OwnSession.
	Local
)

func (l Level) String() string {
	switch l {
	case Strong:
		return "strong"
	case OwnSession:
		return "session"
	default:
		return "local"
	}
}

// Request is a command and where its answer goes.
type Request struct {
	Command wire.Command
	Level   Level
	// Certain is set when the reply shows the write's own revision: it is
	// answered after the commit, with Result.Revision filled in.
	Certain bool
	Reply   *Reply
}

// Errors that a Backend completes requests with; it may wrap them. Any other
// error is shown to the client as it is, after "ERR".
var (
	// ErrNoQuorum: no leader can be reached, and nothing has happened.
	ErrNoQuorum = errors.New("no leader is reachable")
	// ErrUncertain: a write may or may not happen, its outcome cannot be known in time.
	ErrUncertain = errors.New("no answer came in time: the write may have happened, or may still")
	// ErrExpired: the session was given up by the cluster. Nothing has happened;
	// the backend opens a new one for the requests that follow.
	ErrExpired = errors.New("the session has expired, nothing was done")
	// ErrBusy: too much is in flight, nothing has happened.
	ErrBusy = errors.New("too many requests in flight")
	// ErrLoading: the replica is not ready yet.
	ErrLoading = errors.New("weir is loading the store")
)

// Status describes the cluster as a replica knows it, for INFO, CLUSTER, ROLE,
// WEIR.STATUS and the redirection of cluster clients.
type Status struct {
	ID       uint64 // this replica
	Leader   uint64 // 0: none known
	Term     uint64
	View     uint64 // term of the leader that has opened
	Commit   uint64 // log positions
	Applied  uint64
	Durable  uint64
	Revision uint64 // of the newest operation applied here
	Keys     uint64
	Expiring uint64 // keys with a time to live
	Bytes    uint64 // of keys and values
	Loading  bool   // the log is being read
	// Ahead is how far the store's time, by which keys expire, is ahead of this
	// machine's wall clock; 0 if they differ by no more than a second.
	Ahead   time.Duration
	Format  uint64 // of commands that all members know, see wire.Command.Needs
	Preset  string // "raft-ht"
	Version string // weir's version
	Members []Member
	More    []Detail // shown in INFO weir and WEIR.STATUS: "lag_entries", "fast_path_percent"
}

// Member is a replica of the cluster.
type Member struct {
	ID      uint64
	Resp    string // host:port of its Redis front, "" if not known
	Applied uint64 // log position that it is known to have
	Voter   bool
	Up      bool
}

// Detail is a named figure of a Status.
type Detail struct{ Name, Value string }

// Change is a committed change of one key.
type Change struct {
	wire.Change         // its value is not changed any more
	Origin      Session // that wrote it; nil if it is another replica's or not known
}
