package peer

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// Addr names the other end of a connection: a replica's id, which is below
// FirstClient, or the number of a client's connection, which is not used again.
type Addr uint64

// FirstClient is the least address of a client. Ids of replicas are below.
const FirstClient Addr = 1 << 32

// Client reports whether a is a client's connection.
func (a Addr) Client() bool { return a >= FirstClient }

func (a Addr) String() string {
	if a.Client() {
		return fmt.Sprintf("client %d", a-FirstClient)
	}
	return fmt.Sprintf("replica %d", uint64(a))
}

// Handler is who receives. Calls for one address never overlap and come as Up,
// any number of Receive, Down; those for different addresses run concurrently. A
// call that blocks holds back its own connection only, which is how a handler
// slows a sender down; the other side gives up a connection that is held back for
// longer than its SilentAfter, and makes a new one. A handler must not call
// [Transport.Close].
type Handler interface {
	// Up says that messages may be sent to from.
	Up(from Addr, who Remote)
	// Receive hands over all messages that one read of the connection held. The
	// slice and all memory that the messages refer to belong to the handler.
	Receive(from Addr, ms []wire.Message)
	// Down says that the connection has ended, by why. What was sent and not yet
	// answered may or may not have arrived.
	Down(from Addr, why error)
	// ReceiveSnapshot is told that replica from wants to send a snapshot of size
	// bytes which meta describes. The sink's Offset is where the sender goes on:
	// what an earlier, interrupted stream of the same snapshot left, or 0. An
	// error refuses the snapshot, and the sender is told its words.
	ReceiveSnapshot(from uint64, meta []byte, size int64) (SnapshotSink, error)
}

// SnapshotSink takes a snapshot's bytes in order. Close is called once, after
// the last Write: with Offset equal to the announced size the snapshot is
// complete and must be durable when Close returns nil; with less, the stream was
// interrupted and may go on later.
type SnapshotSink interface {
	io.WriteCloser
	// Offset is how many bytes are there, from the beginning.
	Offset() int64
}

// Remote is what the other end said of itself in the handshake.
type Remote struct {
	ID       uint64   // replica id; 0 of a client
	Address  string   // where it listens for replicas; "" of a client
	Instance [16]byte // the same for the life of a process, and no other's
	// LogID is that of the other end; zero if it has none, or is of a version
	// that does not tell it.
	LogID [8]byte
	// Group is the group of replicas that the other end belongs to; zero if it knows
	// none, or is of a version that does not tell it.
	Group [8]byte
	Term  uint64 // last durable position of its log, by Options.Position
	Index uint64
	From  net.Addr             // the connection's other end
	TLS   *tls.ConnectionState // nil without TLS
}

// Options configures a Transport. ID, Cluster and Listen are required.
type Options struct {
	// ID is this replica's, from 1 to FirstClient-1.
	ID uint64
	// Cluster is a name that all replicas and clients must share, of at most 255
	// bytes. It keeps apart what is separate, but is no secret.
	Cluster string
	// Listen is the address HOST:PORT for replicas and clients; port 0 takes a
	// free one.
	Listen string
	// Advertise is where other replicas reach this one. It also tells a replica
	// that has come back from another one of the same id. Default: the address
	// that Listen became.
	Advertise string
	// Peers are the other replicas; see [Transport.SetPeers]. An entry for ID is
	// ignored.
	Peers map[uint64]string
	// AllowPeer has the last word on each replica that connects or is connected
	// to, for messages or a snapshot, whether it is among Peers (known) or not; an
	// error refuses it, and the other side is told its words, with the code if it is
	// a *HandshakeError. It may look at the
	// certificate. A replica that connects has proven the secret by then; one that
	// is dialed proves it afterwards. It must not call the transport. Default:
	// nil, exactly those among Peers.
	AllowPeer func(who Remote, known bool) error

	// Secret, when set, must be proven by replicas in both directions at the
	// start of a connection (HMAC-SHA256 over both sides' random numbers, names
	// and ids); it is never sent. It keeps strangers from connecting. It neither
	// hides nor protects the bytes that follow: on a network where others can
	// alter traffic, use TLS.
	Secret []byte
	// ClientSecret is the same for clients, so that they need not be able to pass
	// for a replica. Default: Secret.
	ClientSecret []byte
	// TLS, when set, is demanded of all clients and replicas, with certificates on both sides.
	// Default: nil, none.
	TLS *Certificates
	// Insecure permits a Listen address that others can reach though there is
	// neither Secret nor TLS. Default: false, then only loopback addresses.
	Insecure bool

	// LogID names the log of this replica, for handshakes; zero: it has none.
	LogID [8]byte
	// Group names the group of replicas that this one belongs to, for handshakes;
	// zero: it knows none yet. Default: nil, zero.
	Group func() [8]byte
	// Position tells the last durable position of the log, for handshakes.
	// Default: nil, 0 and 0.
	Position func() (term, index uint64)

	// QueueBytes bounds what waits to be written to one replica or client. A
	// replica's messages beyond it are dropped or refused (see
	// [Transport.Send]). A client is not read from while more than half of it
	// waits. Default: 64 MiB.
	QueueBytes int
	// MaxClients bounds the connections of clients. Default: 10000.
	MaxClients int
	// SnapshotRate bounds what one SendSnapshot sends, in bytes per second.
	// Default: 0, no limit.
	SnapshotRate int64

	// PingEvery is how often each connection measures its round trip and is
	// looked after. Default: 500 ms.
	PingEvery time.Duration
	// SilentAfter is how long nothing may arrive, or a write may make no
	// progress, before a connection is given up. Default: 2 s, at least twice
	// PingEvery.
	SilentAfter time.Duration
	// HandshakeTimeout bounds connecting and the handshake. Default: 5 s.
	HandshakeTimeout time.Duration
	// RetryMin and RetryMax bound the pauses between attempts to connect, which
	// double from one to the other and vary by a half. Default: 10 ms and 300 ms.
	RetryMin, RetryMax time.Duration

	// Delay is a fixed time that the writer of a connection with another replica
	// lets messages gather after the first one, from 0 to 10 ms, until SetDelay
	// sets another. It exists for comparison: no delay is the better choice.
	// Default: 0.
	Delay time.Duration
	// Latency is an artificial time that messages travel from one replica to
	// another, one way, as on a wide network; it is asked when a connection
	// starts. For benchmarks, on loopback addresses only: Open refuses another
	// Listen address. Default: nil, none.
	Latency func(from, to uint64) time.Duration

	// Log is told of connections that come, go and are refused. Default:
	// discard.
	Log *slog.Logger
}

// Defaults of Options.
const (
	DefaultQueueBytes       = 64 << 20
	DefaultMaxClients       = 10000
	DefaultPingEvery        = 500 * time.Millisecond
	DefaultSilentAfter      = 2 * time.Second
	DefaultHandshakeTimeout = 5 * time.Second
	DefaultRetryMin         = 10 * time.Millisecond
	DefaultRetryMax         = 300 * time.Millisecond
)

const (
	maxCluster = 255
	maxAddress = 255
	maxDelay   = 10 * time.Millisecond
	maxLatency = 10 * time.Second
)

func (o Options) withDefaults() Options {
	o.QueueBytes = cmp.Or(o.QueueBytes, DefaultQueueBytes)
	o.MaxClients = cmp.Or(o.MaxClients, DefaultMaxClients)
	o.PingEvery = cmp.Or(o.PingEvery, DefaultPingEvery)
	o.SilentAfter = max(cmp.Or(o.SilentAfter, DefaultSilentAfter), 2*o.PingEvery)
	o.HandshakeTimeout = cmp.Or(o.HandshakeTimeout, DefaultHandshakeTimeout)
	o.RetryMin = cmp.Or(o.RetryMin, DefaultRetryMin)
	o.RetryMax = max(cmp.Or(o.RetryMax, DefaultRetryMax), o.RetryMin)
	if o.ClientSecret == nil {
		o.ClientSecret = o.Secret
	}
	if o.Position == nil {
		o.Position = func() (term, index uint64) { return 0, 0 }
	}
	if o.Group == nil {
		o.Group = func() (none [8]byte) { return none }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

func (o *Options) validate() error {
	switch {
	case o.ID == 0 || Addr(o.ID) >= FirstClient:
		return fmt.Errorf("replica id %d: must be from 1 to %d", o.ID, uint64(FirstClient-1))
	case o.Cluster == "" || len(o.Cluster) > maxCluster:
		return fmt.Errorf("cluster name of %d bytes: must have 1 to %d", len(o.Cluster), maxCluster)
	case len(o.Advertise) > maxAddress:
		return fmt.Errorf("advertised address of %d bytes: at most %d", len(o.Advertise), maxAddress)
	case checkDelay(o.Delay) != nil:
		return checkDelay(o.Delay)
	case o.QueueBytes < 0 || o.MaxClients < 0 || o.SnapshotRate < 0 || o.PingEvery < 0 || o.HandshakeTimeout < 0 || o.RetryMin < 0:
		return errors.New("sizes, rates and times must not be negative")
	}
	local, err := loopback(o.Listen)
	switch {
	case err != nil:
		return fmt.Errorf("listen address: %w", err)
	case !local && o.TLS == nil && len(o.Secret) == 0 && !o.Insecure:
		return fmt.Errorf("listen address %s can be reached by others: set a secret or certificates, or permit it as insecure", o.Listen)
	case !local && o.TLS == nil && len(o.ClientSecret) == 0 && !o.Insecure:
		return fmt.Errorf("listen address %s can be reached by others: an empty client secret needs certificates", o.Listen)
	case !local && o.Latency != nil:
		return fmt.Errorf("listen address %s: artificial latency is for loopback addresses", o.Listen)
	}
	return nil
}

func checkDelay(d time.Duration) error {
	if d < 0 || d > maxDelay {
		return fmt.Errorf("delay %v: must be from 0 to %v", d, maxDelay)
	}
	return nil
}

// loopback reports whether only this machine reaches a listen address.
func loopback(addr string) (bool, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false, err
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback(), nil
}
