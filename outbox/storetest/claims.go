package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/weirdb/weir/outbox"
)

// mixedClaims checks that a leader and relays that claim with SKIP LOCKED refuse to run together.
func mixedClaims(s *suite) {
	store := s.migrated(outbox.Plan{Shards: 2})
	if !s.SkipLocked {
		if _, ok := store.(outbox.Announcer); ok {
			s.Error("a store without SKIP LOCKED lets it be announced")
		}
		return
	}
	announcer := store.(outbox.Announcer)
	refused := func(what string, err error) {
		s.Helper()
		if !errors.Is(err, outbox.ErrMixedClaims) {
			s.Errorf("%s: %v, want ErrMixedClaims", what, err)
		}
	}
	l := s.lead(store, 1)
	_, err := announcer.Announce(s.ctx())
	refused("claims are announced beside a leader", err)
	s.check(l.Close())

	one, err := announcer.Announce(s.ctx())
	s.check(err)
	other := s.Open(s.T, "").(outbox.Announcer)
	two, err := other.Announce(s.ctx())
	s.check(err)
	_, err = store.Lead(s.ctx(), 0)
	refused("a shard is led beside claims", err)
	s.check(one.Close())
	// The session that was refused before holds the shard until the server sees its end.
	s.eventually("the shard is free", func() bool {
		_, err = store.Lead(s.ctx(), 0)
		return !errors.Is(err, outbox.ErrHeld)
	})
	refused("a shard is led beside the claims that are left", err)
	s.check(two.Close())
	s.check(two.Close())
	s.eventually("the shard is led", func() bool {
		l, err := store.Lead(s.ctx(), 0)
		if err == nil {
			s.check(l.Close())
		}
		return err == nil
	})
}

// mixedRelays runs relays of both kinds: the later one fails, the earlier one continues and delivers
// each message once.
func mixedRelays(s *suite) {
	if !s.SkipLocked {
		return // mixedClaims has it
	}
	for _, claims := range [][2]outbox.ClaimMode{{outbox.Poll, outbox.SkipLocked}, {outbox.SkipLocked, outbox.Auto}} {
		store, sink := s.migrated(outbox.Plan{}), &payloads{}
		ctx, stop := context.WithCancel(s.Context())
		ended := make(chan error, 1)
		first, err := outbox.NewRelay(store, sink, outbox.Config{Claim: claims[0]})
		s.check(err)
		go func() { ended <- first.Run(ctx) }()
		s.enqueue(outbox.Message{Topic: "t", Payload: []byte("before")})
		s.eventually("the first relay works", func() bool { return sink.has("before") })

		second, err := outbox.NewRelay(s.Open(s.T, ""), sink, outbox.Config{Claim: claims[1]})
		s.check(err)
		began := time.Now()
		if err := second.Run(s.ctx()); !errors.Is(err, outbox.ErrMixedClaims) {
			s.Errorf("%v beside %v: %v after %v, want ErrMixedClaims", claims[1], claims[0], err, time.Since(began))
		}
		s.enqueue(messages(100)...)
		s.eventually("all are delivered", func() bool { return s.count(outbox.DefaultTable) == 0 })
		stop()
		s.check(<-ended)
		if len(sink.all) != 101 {
			s.Errorf("%v: %d deliveries, want 101", claims, len(sink.all))
		}
	}
}

// noPooler checks that a direct connection is not taken for a pooler.
func noPooler(s *suite) {
	if c, ok := s.Open(s.T, "").(outbox.Checker); ok {
		s.check(c.Check(s.ctx()))
	}
}

// claimsKeepToBytes checks that a claim ends with the message that reaches MaxBytes, even if that
// message is larger than MaxBytes.
func claimsKeepToBytes(s *suite) {
	if !s.SkipLocked {
		return
	}
	store := s.migrated(outbox.Plan{})
	msgs := make([]outbox.Message, 10)
	for i := range msgs {
		msgs[i] = outbox.Message{Topic: "t", Payload: make([]byte, 1000)}
	}
	msgs[7].Payload = make([]byte, 100_000)
	s.enqueue(msgs...)
	for _, want := range []int{3, 3, 2, 2} { // 3000 bytes, 3000, 101,000 and the rest
		claim, err := store.Claim(s.ctx(), outbox.ClaimRequest{Limit: 100, MaxBytes: 2500})
		s.check(err)
		if n := len(claim.Rows()); n != want {
			s.Errorf("%d rows, want %d", n, want)
		}
		var seqs []int64
		for _, row := range claim.Rows() {
			seqs = append(seqs, row.Seq)
		}
		s.check(claim.Finish(s.ctx(), seqs, nil, nil))
	}
}
