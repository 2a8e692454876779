package peer

import (
	"context"
	"crypto/hmac"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// accept takes connections until Close.
func (t *Transport) accept() {
	for {
		nc, err := t.ln.Accept()
		if err != nil {
			if t.ctx.Err() != nil {
				return
			}
			// Out of file descriptors, for instance: that may pass.
			t.opts.Log.Warn("cannot accept connections", "reason", err.Error())
			if wait(t.ctx, 100*time.Millisecond) != nil {
				return
			}
			continue
		}
		if old := t.greeting.begin(nc); old != nil {
			_ = old.Close() // too many at once: there is no time for a refusal
			t.countRefusal(CodeBusy)
		}
		t.wg.Go(func() { t.receive(nc) })
	}
}

// receive does a handshake and serves the connection to its end.
func (t *Transport) receive(nc net.Conn) {
	ctx, cancel := context.WithTimeout(t.ctx, t.opts.HandshakeTimeout)
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
	g, err := t.greet(ctx, nc)
	t.greeting.end(nc)
	if err == nil {
		switch g.hello.Role {
		case roleReplica:
			err = t.receiveReplica(ctx, g, stop)
		case roleClient:
			err = t.receiveClient(g, stop)
		default:
			err = t.receiveSnapshot(ctx, g, stop)
		}
	}
	stop()
	cancel()
	var refused *HandshakeError
	if errors.As(err, &refused) {
		t.opts.Log.Warn("no connection", "from", nc.RemoteAddr().String(), "reason", refused.Error())
		if !refused.Remote {
			t.countRefusal(refused.Code)
			refuse(g.nc, refused)
		}
	}
	_ = nc.Close() // what ended it is known, or was reported
}

func (t *Transport) countRefusal(c Code) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refused[c]++
}

// lingerAtMost bounds how long, and lingerBytes how much, is read from a
// connection that was refused: a connection that is closed with unread bytes is
// reset, and the refusal is lost.
const (
	lingerAtMost = 500 * time.Millisecond
	lingerBytes  = 1 << 20
)

// refuse sends the other side the reason, unless TLS has already done that. It does not matter
// whether it arrives.
func refuse(nc net.Conn, why *HandshakeError) {
	_ = nc.SetDeadline(time.Now().Add(lingerAtMost))
	r := refusal{why.Code, why.Reason[:min(len(why.Reason), maxReasonBytes)]}
	if !why.told && writeFrame(nc, frameRefusal, r.append(nil)) != nil {
		return
	}
	if half, ok := nc.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, nc, lingerBytes)
	}
}

// guest is a connection that has proven what it had to. It waits for its
// welcome.
type guest struct {
	session
	welcome []byte
}

// accepted sends the welcome, and ends the time limit of the handshake.
func (g *guest) accepted(stop func() bool) error {
	if !stop() {
		return errors.New("the handshake took too long")
	}
	if err := writeFrame(g.nc, frameWelcome, g.welcome); err != nil {
		return err
	}
	return g.nc.SetDeadline(time.Time{})
}

// greet does the handshake up to the welcome. If this side refuses, the returned
// guest says where to send the refusal.
func (t *Transport) greet(ctx context.Context, nc net.Conn) (*guest, error) {
	_ = nc.SetDeadline(time.Now().Add(t.opts.HandshakeTimeout)) // only fails on a closed connection, like everything that follows
	g := &guest{session: session{nc: nc}}
	if err := g.secure(ctx, t.opts.TLS); err != nil {
		return g, err
	}
	head := make([]byte, prefaceBytes)
	if _, err := io.ReadFull(g.nc, head); err != nil {
		return g, fmt.Errorf("read: %w", err)
	}
	if !strings.HasPrefix(string(head), preface) {
		return g, &HandshakeError{Code: CodeMalformed, Reason: "what came is not this protocol"}
	}
	if want := newHead(); string(head) != string(want) {
		return g, &HandshakeError{Code: CodeVersion, Reason: fmt.Sprintf("this side speaks version %d", version)}
	}
	g.in = &inbox{src: g.nc, max: maxHandshake}
	body, err := expect(g.in, frameHello)
	if err != nil {
		return g, err
	}
	said := append([]byte(nil), body...) // body is valid until the next frame
	if g.hello, err = decodeHello(said); err != nil {
		return g, &HandshakeError{Code: CodeMalformed, Reason: err.Error(), Err: err}
	}
	if err := t.check(g); err != nil {
		return g, err
	}
	return g, t.authenticate(g, head, said)
}

// secure looks at the first byte, which distinguishes TLS from plain text, and does the TLS
// handshake if it is demanded.
func (g *guest) secure(ctx context.Context, certs *Certificates) error {
	first := make([]byte, 1)
	if _, err := io.ReadFull(g.nc, first); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	again := &rewound{g.nc.(*net.TCPConn), first}
	switch isTLS := first[0] == tlsFirstByte; {
	case isTLS && certs == nil:
		return &HandshakeError{Code: CodeNoTLS, Reason: "this side speaks no TLS"}
	case !isTLS && certs != nil:
		return &HandshakeError{Code: CodeWantsTLS, Reason: "this side demands TLS"}
	case !isTLS:
		g.nc = again
		return nil
	}
	t := tls.Server(again, certs.server())
	if err := t.HandshakeContext(ctx); err != nil {
		return &HandshakeError{Code: CodeUnauthenticated, Reason: "TLS: " + err.Error(), Err: err, told: true}
	}
	g.nc = t
	return nil
}

// rewound is a connection whose first byte was read in advance.
type rewound struct {
	*net.TCPConn
	first []byte
}

func (r *rewound) Read(p []byte) (int, error) {
	if len(r.first) > 0 && len(p) > 0 {
		p[0], r.first = r.first[0], nil
		return 1, nil
	}
	return r.TCPConn.Read(p)
}

// check checks what the dialing side says before it has proven anything.
func (t *Transport) check(g *guest) error {
	h := &g.hello
	switch {
	case h.Cluster != t.opts.Cluster && (h.Role != roleClient || h.Cluster != ""):
		return &HandshakeError{Code: CodeCluster, Reason: fmt.Sprintf("this is cluster %q", t.opts.Cluster)}
	case h.To != 0 && h.To != t.opts.ID:
		return &HandshakeError{Code: CodeReplica, Reason: fmt.Sprintf("this is replica %d", t.opts.ID)}
	case h.Self.ID == t.opts.ID:
		return &HandshakeError{Code: CodeTaken, Reason: fmt.Sprintf("replica %d is here already", t.opts.ID)}
	}
	return nil
}

// authenticate demands the proof, if there is a secret, and prepares the answer
// to it.
func (t *Transport) authenticate(g *guest, head, said []byte) error {
	secret := t.opts.Secret
	if g.hello.Role == roleClient {
		secret = t.opts.ClientSecret
	}
	c := challenge{Cluster: t.opts.Cluster, Self: t.self(), Nonce: newNonce(t.opts.Group()), Secret: len(secret) > 0}
	answer := c.append(nil)
	begin := time.Now()
	if err := writeFrame(g.nc, frameChallenge, answer); err != nil {
		return err
	}
	body, err := expect(g.in, frameProof)
	if err != nil {
		return err
	}
	g.trip = time.Since(begin)
	bound, err := exported(g.nc)
	if err != nil {
		return err
	}
	sum := transcript(head, said, answer, bound)
	if len(secret) > 0 && !hmac.Equal(body, prove(secret, labelDial, sum)) {
		return &HandshakeError{Code: CodeUnauthenticated, Reason: "the secret was not proven"}
	}
	g.welcome = prove(secret, labelAccept, sum)
	g.who = remote(g.hello.Self, g.hello.Nonce, g.nc)
	if g.hello.Role == roleClient {
		return nil
	}
	return t.admit(g)
}

// admit decides on a replica that has authenticated.
func (t *Transport) admit(g *guest) error {
	t.mu.Lock()
	r := t.known[g.who.ID]
	known := r != nil && r.member
	t.mu.Unlock()
	if t.opts.AllowPeer != nil {
		if err := t.opts.AllowPeer(g.who, known); err != nil {
			return notAllowed(err)
		}
	} else if !known {
		return &HandshakeError{Code: CodeUnknown, Reason: fmt.Sprintf("replica %d is not known here", g.who.ID)}
	}
	if g.hello.Role == roleReplica && g.who.ID < t.opts.ID {
		return &HandshakeError{Code: CodeReplica, Reason: fmt.Sprintf("replica %d dials, since its id is larger", t.opts.ID)}
	}
	return nil
}

// receiveReplica serves a replica that has dialed.
func (t *Transport) receiveReplica(ctx context.Context, g *guest, stop func() bool) error {
	t.mu.Lock()
	r := t.replica(g.who.ID)
	t.mu.Unlock()
	g.in.max, g.in.most = maxFrame, replicaBuffer
	l := newLink(&g.session, &r.count, t.linkConfig(t.latency(r.id), false))
	place, h := seat{roleReplica, r.id}, &holder{address: g.who.Address, end: l.end, done: make(chan struct{})}
	if err := t.sit(ctx, place, h); err != nil {
		return err
	}
	defer t.rise(place, h)
	t.note(r, t.serve(Addr(r.id), l, func() error { return g.accepted(stop) }))
	return nil
}

// receiveClient serves a client.
func (t *Transport) receiveClient(g *guest, stop func() bool) error {
	t.mu.Lock()
	if t.open >= t.opts.MaxClients {
		t.mu.Unlock()
		return &HandshakeError{Code: CodeBusy, Reason: fmt.Sprintf("%d clients are connected", t.opts.MaxClients)}
	}
	t.open++
	t.lastClient++
	a := t.lastClient
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.open--
	}()
	latency := time.Duration(0)
	if onLoopback(g.nc) {
		latency = g.hello.Latency
	}
	g.in.max, g.in.most = maxClientFrame, clientBuffer
	l := newLink(&g.session, &t.clients, t.linkConfig(latency, true))
	_ = t.serve(a, l, func() error { return g.accepted(stop) }) // logged, and reported to the handler
	return nil
}
