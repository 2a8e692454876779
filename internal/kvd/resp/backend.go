package resp

import (
	"errors"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Backend is the store behind a Server. It must be safe for concurrent use.
type Backend interface {
	// Open starts the session of a new connection. The server closes it once.
	Open(replies Replies) Session
	// Status returns the newest known state of the cluster. It is cheap, and the result must
	// not change.
	Status() *Status
}

// Replies is the connection of a Session.
type Replies interface {
	// Flush says that the calls of Reply.Done are complete for now: completed replies are sent.
	// Every Done must soon be followed by a Flush of its connection. Flush does not block.
	Flush()
}

// Session is the store as seen by one connection. Its methods must be called by one goroutine
// at a time.
//
// Requests take effect in the order of Do: a read sees the writes submitted before it, answered
// or not, and writes are ordered as they were submitted.
type Session interface {
	// Do submits a batch of requests. The caller owns the slice, and all memory that its
	// commands refer to, again when Do returns: the session encodes them. Do does not block.
	// For each request Reply.Done is called exactly once, by any goroutine, in any order,
	// possibly within Do; requests completed within Do need no Flush.
	Do(batch []Request)
	// Wait completes reply with Number = the number of replicas beside the leader that have the
	// earlier writes on disk, as soon as it is at least replicas or the timeout has passed (0:
	// never).
	Wait(replicas int, timeout time.Duration, reply *Reply)
	// Token returns a lower bound of what this session has seen, and Advance makes it at least
	// as new as another session's token. Token is safe for concurrent use.
	Token() (view, index uint64)
	Advance(view, index uint64)
	// Resume says that there is room again for answers that were rejected, see Reply.Accept. It
	// is safe for concurrent use.
	Resume()
	// Close ends the session. Requests in flight may complete or not.
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

// Request is a command with its reply.
type Request struct {
	Command wire.Command
	Level   Level
	// Certain requests are answered after the commit, with the write's own revision in
	// Result.Revision.
	Certain bool
	Reply   *Reply
}

// Errors with which a Backend completes requests, possibly wrapped. The client sees any other
// error as it is, after "ERR".
var (
	// ErrNoQuorum: no leader can be reached; nothing has happened.
	ErrNoQuorum = errors.New("no leader is reachable")
	// ErrUncertain: a write may or may not happen; its outcome cannot be known in time.
	ErrUncertain = errors.New("no answer came in time: the write may have happened, or may still")
	// ErrExpired: the cluster has removed the session; nothing has happened. The backend opens
	// a new one for later requests.
	ErrExpired = errors.New("the session has expired, nothing was done")
	// ErrBusy: too many requests are in flight; nothing has happened.
	ErrBusy = errors.New("too many requests in flight")
	// ErrLoading: the replica is not ready yet.
	ErrLoading = errors.New("weir is loading the store")
)

// Status is the state of the cluster as a replica knows it, for INFO, CLUSTER, ROLE,
// WEIR.STATUS and redirects of cluster clients.
type Status struct {
	ID       uint64 // this replica
	Leader   uint64 // 0: none known
	Term     uint64
	View     uint64 // term of the leader whose view is open
	Commit   uint64 // log positions
	Applied  uint64
	Durable  uint64
	Revision uint64 // of the newest operation applied by this replica
	Keys     uint64
	Expiring uint64 // keys with a time to live
	Bytes    uint64 // of keys and values
	Loading  bool   // the log is being read
	// Ahead is how far the store's time, by which keys expire, is ahead of this machine's wall
	// clock; 0 if they differ by at most a second.
	Ahead   time.Duration
	Format  uint64 // newest format of commands that all members know, see wire.Command.Needs
	Preset  string // "raft-ht"
	Version string // weir's version
	Members []Member
	More    []Detail // shown in INFO weir and WEIR.STATUS: "lag_entries", "fast_path_percent"
}

// Member is a replica of the cluster.
type Member struct {
	ID      uint64
	Resp    string // host:port of its Redis front, "" if not known
	Applied uint64 // last log position that it is known to have
	Voter   bool
	Up      bool
}

// Detail is a named figure of a Status.
type Detail struct{ Name, Value string }

// Change is a committed change of a key.
type Change struct {
	wire.Change         // its value must not change
	Origin      Session // the writer; nil if unknown or connected to another replica
}
