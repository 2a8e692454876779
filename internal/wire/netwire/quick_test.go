package netwire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// pair returns both ends of a TCP connection.
func pair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	near, err = net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if far, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = near.Close(), far.Close() }) // some are closed already
	return near, far
}

// Bytes written through a quick connection arrive whole, however slowly they are read, and the
// end comes after them.
func TestQuickCarriesAll(t *testing.T) {
	near, far := pair(t)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<20) // more than the sockets hold
	done := make(chan error, 1)
	go func() {
		n, err := Quick(near).Write(sent)
		if err == nil && n != len(sent) {
			err = io.ErrShortWrite
		}
		done <- errors.Join(err, near.Close())
	}()
	got, err := io.ReadAll(Quick(far))
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d of %d bytes arrived, %v", len(got), len(sent), err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Deadlines, the end by the other side and the own one are told as a connection of
// package net tells them.
func TestQuickErrors(t *testing.T) {
	near, far := pair(t)
	q := Quick(near)
	if err := q.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline: %v", err)
	}
	if n, err := q.Read(nil); n != 0 || err != nil {
		t.Errorf("a read of nothing: %d, %v", n, err)
	}
	if err := q.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := far.(*net.TCPConn).SetLinger(0); err != nil { // a reset
		t.Fatal(err)
	}
	if err := far.Close(); err != nil {
		t.Fatal(err)
	}
	var op *net.OpError
	if _, err := q.Read(make([]byte, 1)); !errors.As(err, &op) {
		t.Errorf("after a reset: %v", err)
	}
	if _, err := q.Write([]byte("x")); !errors.As(err, &op) {
		t.Errorf("a write after a reset: %v", err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a read after the end: %v", err)
	}
	if _, err := q.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a write after the end: %v", err)
	}
	unix, other := net.Pipe()
	if Quick(unix) != unix {
		t.Error("what is no TCP connection was replaced")
	}
	if err := errors.Join(unix.Close(), other.Close()); err != nil {
		t.Fatal(err)
	}
}
