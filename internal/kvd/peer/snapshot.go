package peer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

const (
	chunkBytes = 256 << 10
	// MaxSnapshotMeta bounds the description of a snapshot, in bytes.
	MaxSnapshotMeta = 1 << 20
	maxStreamFrame  = MaxSnapshotMeta + 64
	// streamPatience bounds each step of a snapshot's transfer: a chunk, and
	// the receiver's work on its disk before it answers.
	streamPatience = time.Minute
	// streamAttempts is how many attempts in a row may fail without bringing the receiver another
	// byte.
	streamAttempts = 5
)

// SendSnapshot sends size bytes to replica to, over a connection of its own, and
// returns nil when the receiver's sink has been closed without error. open returns
// the bytes from an offset on, up to which the receiver already has them;
// the reader is always closed. meta describes the snapshot to the receiver,
// which must recognize by it a snapshot that it has a part of.
//
// If the connection fails, another one continues from where the receiver is, as long
// as there is progress. A *HandshakeError means that the receiver, or its
// handler, refused.
func (t *Transport) SendSnapshot(ctx context.Context, to uint64, meta []byte, size int64, open func(offset int64) (io.ReadCloser, error)) error {
	if len(meta) > MaxSnapshotMeta || size < 0 {
		return fmt.Errorf("send snapshot: %d bytes of description, %d of contents: %w", len(meta), size, ErrTooLarge)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(t.ctx, func() { cancel(ErrClosed) })()
	u := &upload{t: t, to: to, meta: meta, size: size, open: open, reached: -1}
	pause := t.opts.RetryMin
	for failures := 0; ; {
		before := u.reached
		err := u.attempt(ctx)
		var permanent *permanentError
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("send snapshot to replica %d: %w", to, context.Cause(ctx))
		case errors.As(err, &permanent):
			return fmt.Errorf("send snapshot to replica %d: %w", to, permanent.err)
		case u.reached > before:
			failures, pause = 0, t.opts.RetryMin
		}
		if failures++; failures >= streamAttempts {
			return fmt.Errorf("send snapshot to replica %d, %d attempts: %w", to, failures, err)
		}
		t.opts.Log.Info("snapshot interrupted", "to", Addr(to).String(), "at", u.reached, "reason", err.Error())
		if err := wait(ctx, pause/2+rand.N(pause)); err != nil {
			return fmt.Errorf("send snapshot to replica %d: %w", to, err)
		}
		pause = min(2*pause, t.opts.RetryMax)
	}
}

// permanentError is an error that another attempt would meet again.
type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }

// upload is a snapshot that is being sent, over one connection after the other.
type upload struct {
	t       *Transport
	to      uint64
	meta    []byte
	size    int64
	open    func(offset int64) (io.ReadCloser, error)
	reached int64 // what the receiver has reported, -1 before that
}

// attempt sends what the receiver lacks over one connection.
func (u *upload) attempt(ctx context.Context) error {
	u.t.mu.RLock()
	r := u.t.known[u.to]
	var addr string
	if r != nil {
		addr = r.addr
	}
	u.t.mu.RUnlock()
	if addr == "" {
		return &permanentError{fmt.Errorf("its address is not known: %w", ErrDown)}
	}
	s, err := u.t.dialer(u.to, roleSnapshot, maxStreamFrame).open(ctx, addr)
	if err != nil {
		return refusedForGood(err)
	}
	defer func() { _ = s.nc.Close() }() // the answer has already come
	defer context.AfterFunc(ctx, func() { _ = s.nc.Close() })()
	offset, err := u.begin(s)
	if err != nil {
		return refusedForGood(err)
	}
	u.reached = max(u.reached, offset)
	if err := u.stream(ctx, s, r, offset); err != nil {
		// A receiver that gives up says why before it closes.
		_ = s.nc.SetReadDeadline(time.Now().Add(lingerAtMost))
		if _, refused := expect(s.in, frameStored); isHandshakeError(refused) {
			return refusedForGood(refused)
		}
		return err
	}
	_ = s.nc.SetDeadline(time.Now().Add(streamPatience))
	_, err = expect(s.in, frameStored)
	return refusedForGood(err)
}

// begin announces the snapshot and returns the offset that the receiver wants.
func (u *upload) begin(s *session) (offset int64, err error) {
	_ = s.nc.SetDeadline(time.Now().Add(streamPatience))
	announce := append(binary.AppendUvarint(nil, uint64(u.size)), u.meta...)
	if err := writeFrame(s.nc, frameSnapshot, announce); err != nil {
		return 0, err
	}
	body, err := expect(s.in, frameResume)
	if err != nil {
		return 0, err
	}
	at, n := binary.Uvarint(body)
	if n != len(body) || at > uint64(u.size) {
		return 0, &HandshakeError{Code: CodeMalformed, Reason: "the receiver's offset makes no sense"}
	}
	return int64(at), nil
}

// stream sends the bytes from offset on.
func (u *upload) stream(ctx context.Context, s *session, r *replica, offset int64) error {
	src, err := u.open(offset)
	if err != nil {
		return &permanentError{fmt.Errorf("open snapshot at %d: %w", offset, err)}
	}
	defer func() { _ = src.Close() }() // only read
	limit := limiter{perSecond: u.t.opts.SnapshotRate}
	chunk := make([]byte, limit.chunk(chunkBytes))
	for offset < u.size {
		part := chunk[:min(int64(len(chunk)), u.size-offset)]
		if _, err := io.ReadFull(src, part); err != nil {
			return &permanentError{fmt.Errorf("read snapshot at %d of %d: %w", offset, u.size, err)}
		}
		if err := limit.wait(ctx, len(part)); err != nil {
			return err
		}
		_ = s.nc.SetDeadline(time.Now().Add(streamPatience))
		if err := writeFrame(s.nc, frameChunk, part); err != nil {
			return err
		}
		offset += int64(len(part))
		r.snapshot.sent.Add(uint64(len(part)))
	}
	return writeFrame(s.nc, frameEnd, nil)
}

func isHandshakeError(err error) bool {
	var h *HandshakeError
	return errors.As(err, &h)
}

// refusedForGood marks refusals that another attempt would meet again.
func refusedForGood(err error) error {
	var h *HandshakeError
	if errors.As(err, &h) && h.Code != CodeBusy && h.Code != CodeTaken {
		return &permanentError{err}
	}
	return err
}

// receiveSnapshot serves a replica that wants to send a snapshot.
func (t *Transport) receiveSnapshot(ctx context.Context, g *guest, stop func() bool) error {
	place := seat{roleSnapshot, g.who.ID}
	h := &holder{address: g.who.Address, end: func(error) { _ = g.nc.Close() }, done: make(chan struct{})}
	if err := t.sit(ctx, place, h); err != nil {
		return err
	}
	defer t.rise(place, h)
	if err := g.accepted(stop); err != nil {
		return err
	}
	t.mu.Lock()
	r := t.replica(g.who.ID)
	t.mu.Unlock()
	g.in.max, g.in.most = maxStreamFrame, 2*chunkBytes
	err := t.takeSnapshot(g, r)
	if err != nil {
		t.opts.Log.Warn("snapshot not received", "from", Addr(r.id).String(), "reason", err.Error())
	}
	return err
}

// takeSnapshot passes a snapshot from the connection to the handler's sink.
func (t *Transport) takeSnapshot(g *guest, r *replica) error {
	_ = g.nc.SetDeadline(time.Now().Add(streamPatience))
	body, err := expect(g.in, frameSnapshot)
	if err != nil {
		return err
	}
	announced, n := binary.Uvarint(body)
	if n <= 0 || announced > 1<<62 {
		return &HandshakeError{Code: CodeMalformed, Reason: "the snapshot's size makes no sense"}
	}
	size := int64(announced)
	sink, err := t.h.ReceiveSnapshot(r.id, append([]byte(nil), body[n:]...), size)
	if err != nil {
		return &HandshakeError{Code: CodeSnapshot, Reason: err.Error(), Err: err}
	}
	err = fillSink(g, r, sink, size)
	if closing := sink.Close(); err == nil && closing != nil {
		err = &HandshakeError{Code: CodeSnapshot, Reason: closing.Error(), Err: closing}
	}
	if err != nil {
		return err
	}
	_ = g.nc.SetDeadline(time.Now().Add(streamPatience))
	return writeFrame(g.nc, frameStored, nil)
}

// fillSink asks for what the sink lacks and writes it there.
func fillSink(g *guest, r *replica, sink SnapshotSink, size int64) error {
	at := sink.Offset()
	if at < 0 || at > size {
		return &HandshakeError{Code: CodeSnapshot, Reason: fmt.Sprintf("%d bytes are here, of %d", at, size)}
	}
	if err := writeFrame(g.nc, frameResume, binary.AppendUvarint(nil, uint64(at))); err != nil {
		return err
	}
	for {
		_ = g.nc.SetDeadline(time.Now().Add(streamPatience))
		kind, body, err := g.in.frame()
		switch {
		case err != nil:
			return fmt.Errorf("read: %w", err)
		case kind == frameEnd && at == size:
			return nil
		case kind != frameChunk || int64(len(body)) > size-at:
			return &HandshakeError{Code: CodeMalformed, Reason: fmt.Sprintf("frame of kind %d and %d bytes at %d of %d", kind, len(body), at, size)}
		}
		if _, err := sink.Write(body); err != nil {
			return &HandshakeError{Code: CodeSnapshot, Reason: err.Error(), Err: err}
		}
		at += int64(len(body))
		r.snapshot.received.Add(uint64(len(body)))
	}
}

// limiter bounds the bytes per second of one stream.
type limiter struct {
	perSecond int64     // 0 is no limit
	paid      time.Time // when what was let through will have taken its time
}

// chunk returns how much to send at once: at most a tenth of a second's worth.
func (l *limiter) chunk(most int) int {
	if l.perSecond == 0 {
		return most
	}
	return int(min(int64(most), max(l.perSecond/10, 1)))
}

// wait lets n bytes through. They may be ahead by a tenth of a second, so that
// late timers do not lower the rate.
func (l *limiter) wait(ctx context.Context, n int) error {
	if l.perSecond == 0 {
		return nil
	}
	now := time.Now()
	if l.paid.Before(now) {
		l.paid = now
	}
	ahead := l.paid.Sub(now) - 100*time.Millisecond
	l.paid = l.paid.Add(time.Duration(float64(n) / float64(l.perSecond) * float64(time.Second)))
	if ahead <= 0 {
		return nil
	}
	return wait(ctx, ahead)
}
