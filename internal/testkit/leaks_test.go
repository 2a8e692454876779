package testkit

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestLeaksAreFound(t *testing.T) {
	before := HeldNow()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	end := make(chan struct{})
	go func() { <-end }()
	if err := before.settle(50 * time.Millisecond); err == nil || !strings.Contains(err.Error(), "leak") {
		t.Errorf("with a goroutine and a pipe more: %v", err)
	}
	close(end)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	_ = w // as package net drops its pipes: closed when it is collected
	if err := before.Settle(); err != nil {
		t.Error(err)
	}
}
