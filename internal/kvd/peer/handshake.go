package peer

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"
)

// The handshake, as both sides see it:
//
//	dialing side                                  dialed side
//	preface, hello{role, cluster, ids, nonce} ──►
//	                                          ◄── challenge{cluster, id, nonce}
//	proof = HMAC(secret, "dial" , transcript) ──►   checked before anything is told
//	                                          ◄── welcome = HMAC(secret, "accept", transcript)
//
// The transcript is a hash over the preface, the hello, the challenge and, with
// TLS, a value of the TLS session. Both nonces are in it, so that a recorded
// handshake opens nothing, and so are role, cluster, ids and addresses, so that
// none of them can be altered. The labels keep a proof from being sent back. Who
// dials proves first: a stranger who connects learns nothing that could be tried
// against guessed secrets.

// session is a connection whose handshake is done.
type session struct {
	nc    net.Conn
	in    *inbox
	hello hello
	who   Remote
	trip  time.Duration // from a question to its answer
}

// transcript hashes what both sides said. exported is a value of the TLS
// session, nil without TLS.
func transcript(head, hello, challenge, exported []byte) [sha256.Size]byte {
	h := sha256.New()
	for _, part := range [][]byte{head, hello, challenge, exported} {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		h.Write(part)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// prove returns a side's proof, zeros without a secret.
func prove(secret []byte, label string, transcript [sha256.Size]byte) []byte {
	if len(secret) == 0 {
		return make([]byte, proofBytes)
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(label))
	mac.Write(transcript[:])
	return mac.Sum(nil)
}

const (
	labelDial   = "weirkv dial\x00"
	labelAccept = "weirkv accept\x00"
)

// exported returns a value that only the two ends of a TLS session know.
func exported(nc net.Conn) ([]byte, error) {
	t, ok := nc.(*tls.Conn)
	if !ok {
		return nil, nil
	}
	state := t.ConnectionState()
	v, err := state.ExportKeyingMaterial("EXPORTER-weirkv", nil, 32)
	if err != nil {
		return nil, fmt.Errorf("bind to TLS: %w", err)
	}
	return v, nil
}

func newHead() []byte {
	return binary.LittleEndian.AppendUint16([]byte(preface), version)
}

// writeFrame writes one frame of a handshake or a snapshot.
func writeFrame(nc net.Conn, kind byte, body []byte) error {
	var f frames
	f.control(kind, body)
	checksum(f.buf)
	if _, err := nc.Write(f.buf); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// expect reads the frame of the given kind. A refusal becomes its error.
func expect(in *inbox, kind byte) ([]byte, error) {
	got, body, err := in.frame()
	switch {
	case errors.Is(err, errCorrupt):
		return nil, &HandshakeError{Code: CodeMalformed, Reason: "what came is not a frame of this protocol", Err: err}
	case err != nil:
		return nil, fmt.Errorf("read: %w", err)
	case got == frameRefusal:
		r, err := decodeRefusal(body)
		if err != nil {
			return nil, &HandshakeError{Code: CodeMalformed, Reason: err.Error(), Err: err}
		}
		return nil, &HandshakeError{Code: r.Code, Reason: r.Reason, Remote: true}
	case got != kind:
		return nil, &HandshakeError{Code: CodeMalformed, Reason: fmt.Sprintf("frame of kind %d where %d belongs", got, kind)}
	}
	return body, nil
}

// dialer opens connections.
type dialer struct {
	hello     hello // but for the nonce
	group     [8]byte
	secret    []byte
	certs     *Certificates
	connect   time.Duration // bounds the TCP connection alone
	handshake time.Duration // bounds what follows
	maxFrame  int
	allow     func(Remote) error // nil: any replica
}

// open connects to addr and does the handshake. The caller closes what it
// returns. Cancelling ctx ends it early.
func (d *dialer) open(ctx context.Context, addr string) (*session, error) {
	nd := net.Dialer{Timeout: d.connect, KeepAlive: -1}
	nc, err := nd.DialContext(ctx, "tcp", addr)
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return nil, op.Err // the caller names the address
	} else if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	raw := nc
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	_ = nc.SetDeadline(time.Now().Add(d.handshake)) // fails only on a closed connection, as all that follows
	s, err := d.greet(ctx, nc, addr)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = raw.Close() // the error that matters is known
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("handshake with %s: %w", addr, err)
	}
	_ = s.nc.SetDeadline(time.Time{})
	return s, nil
}

func (d *dialer) greet(ctx context.Context, nc net.Conn, addr string) (*session, error) {
	if d.certs != nil {
		t, err := d.secure(ctx, nc, addr)
		if err != nil {
			return nil, err
		}
		nc = t
	}
	h := d.hello
	h.Nonce = newNonce(d.group)
	head, said := newHead(), h.append(nil)
	var f frames
	f.control(frameHello, said)
	checksum(f.buf)
	if _, err := nc.Write(append(append([]byte(nil), head...), f.buf...)); err != nil {
		return nil, fmt.Errorf("write: %w", err)
	}
	in := &inbox{src: nc, max: maxHandshake}
	body, err := expect(in, frameChallenge)
	if err != nil {
		return nil, d.explain(err)
	}
	answer := append([]byte(nil), body...) // body is good until the next frame
	c, err := decodeChallenge(answer)
	if err != nil {
		return nil, &HandshakeError{Code: CodeMalformed, Reason: err.Error(), Err: err}
	}
	if err := d.check(&c); err != nil {
		return nil, err
	}
	bound, err := exported(nc)
	if err != nil {
		return nil, err
	}
	sum := transcript(head, said, answer, bound)
	who := remote(c.Self, c.Nonce, nc)
	if d.allow != nil {
		if err := d.allow(who); err != nil {
			refused := notAllowed(err)
			refuse(nc, refused)
			return nil, refused
		}
	}
	begin := time.Now()
	if err := writeFrame(nc, frameProof, prove(d.secret, labelDial, sum)); err != nil {
		return nil, err
	}
	body, err = expect(in, frameWelcome)
	if err != nil {
		return nil, err
	}
	trip := time.Since(begin)
	if !hmac.Equal(body, prove(d.secret, labelAccept, sum)) {
		return nil, &HandshakeError{Code: CodeUnauthenticated, Reason: "the other side did not prove that it knows the secret"}
	}
	in.max, in.most = d.maxFrame, replicaBuffer
	return &session{nc, in, h, who, trip}, nil
}

// check looks at what the dialed side says of itself.
func (d *dialer) check(c *challenge) error {
	switch {
	case d.hello.Cluster != "" && c.Cluster != d.hello.Cluster:
		return &HandshakeError{Code: CodeCluster, Reason: fmt.Sprintf("the cluster there is %q, wanted %q", c.Cluster, d.hello.Cluster)}
	case d.hello.To != 0 && c.Self.ID != d.hello.To:
		return &HandshakeError{Code: CodeReplica, Reason: fmt.Sprintf("replica %d is there, wanted %d", c.Self.ID, d.hello.To)}
	case c.Secret && len(d.secret) == 0:
		return &HandshakeError{Code: CodeUnauthenticated, Reason: "the other side demands a secret, and none is set here"}
	case !c.Secret && len(d.secret) > 0:
		return &HandshakeError{Code: CodeUnauthenticated, Reason: "the other side has no secret, and one is set here"}
	}
	return nil
}

// secure does the TLS handshake.
func (d *dialer) secure(ctx context.Context, nc net.Conn, addr string) (*tls.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("address: %w", err)
	}
	cfg, err := d.certs.client(host)
	if err != nil {
		return nil, err
	}
	t := tls.Client(nc, cfg)
	err = t.HandshakeContext(ctx)
	var plain tls.RecordHeaderError
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &plain):
		return nil, &HandshakeError{Code: CodeNoTLS, Reason: "the other side speaks no TLS", Err: err}
	case errors.As(err, &untrusted):
		return nil, &HandshakeError{Code: CodeUnauthenticated, Reason: "certificate of the other side: " + untrusted.Err.Error(), Err: err}
	case err != nil:
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return t, nil
}

// explain gives TLS alerts, which come when a certificate was not accepted, their
// place among the codes. With TLS 1.3 they come with the first read.
func (d *dialer) explain(err error) error {
	var alert tls.AlertError
	if d.certs != nil && (errors.As(err, &alert) || isRemoteTLS(err)) {
		return &HandshakeError{Code: CodeUnauthenticated, Reason: "the other side does not accept the certificate", Remote: true, Err: err}
	}
	return err
}

// isRemoteTLS reports whether err is a TLS alert that came over the network.
func isRemoteTLS(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// notAllowed is the refusal of a replica that Options.AllowPeer does not want.
func notAllowed(err error) *HandshakeError {
	if h := (*HandshakeError)(nil); errors.As(err, &h) {
		return h
	}
	return &HandshakeError{Code: CodeUnknown, Reason: err.Error(), Err: err}
}

func remote(s self, nonce [nonceBytes]byte, nc net.Conn) Remote {
	r := Remote{
		ID: s.ID, Address: s.Address, Instance: s.Instance, LogID: logOf(s.Instance), Group: groupOf(nonce),
		Term: s.Term, Index: s.Index, From: nc.RemoteAddr(),
	}
	if t, ok := nc.(*tls.Conn); ok {
		state := t.ConnectionState()
		r.TLS = &state
	}
	return r
}
