package replica

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/peer"
	"github.com/weirdb/weir/internal/kvd/wal"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// snapshots saves, sends and receives states in the background.
type snapshots struct {
	files *wal.Snapshots
	disk  *disk
	inbox *inbox
	log   *slog.Logger
	stats snapshotStats

	transport *peer.Transport

	ctx    context.Context // ends with the replica
	cancel context.CancelFunc
	wg     sync.WaitGroup

	core *consensus.Core // of the core goroutine
	feed *feed

	mu    sync.Mutex                     // guards ships
	ships map[uint64]*context.CancelFunc // in progress, the last one to each receiver
}

// snapshotStats are read by metrics.
type snapshotStats struct {
	saved, failed, shipped, unshipped, received atomic.Uint64
}

func newSnapshots(r *Replica) *snapshots {
	s := &snapshots{
		files: r.disk.log.Snapshots(), disk: r.disk, inbox: r.inbox, log: r.cfg.Log, core: r.core, feed: r.feed,
		ships: map[uint64]*context.CancelFunc{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// stop ends transfers in progress and waits for them.
func (s *snapshots) stop() {
	s.cancel()
	s.wg.Wait()
}

// save writes a snapshot; the core learns of the end.
func (s *snapshots) save(snap *consensus.Snapshot) {
	s.wg.Go(func() {
		info, err := s.files.Create(wal.SnapshotInfo{Index: snap.Index, Term: snap.Term}, func(w io.Writer) error {
			_, err := snap.WriteTo(&stoppable{w, s.ctx})
			return err
		})
		switch {
		case err == nil:
			s.stats.saved.Add(1)
			s.log.Debug("snapshot saved", "index", info.Index, "bytes", info.Bytes)
		case s.ctx.Err() != nil:
			return
		default:
			s.stats.failed.Add(1)
			s.log.Error("snapshot not saved; the log grows until one is", "index", snap.Index, "error", err)
		}
		s.inbox.call(func(at consensus.Clock) { s.core.SnapshotSaved(at, snap.Index, err) })
		if err == nil {
			s.disk.put(order{tidy: true})
		}
	})
}

// stoppable is a writer that fails once its context has ended.
type stoppable struct {
	w   io.Writer
	ctx context.Context
}

func (s *stoppable) Write(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.w.Write(p)
}

// ship sends the snapshot that the core names; the core learns of the end. A snapshot
// that is being sent to the same replica is abandoned without a report to the core:
// the engine would take that for the end of the new one, and order a third.
func (s *snapshots) ship(order *consensus.Ship) {
	to, index, message := uint64(order.To), order.Index, order.Message
	ctx, cancel := context.WithCancel(s.ctx)
	s.mu.Lock()
	if before := s.ships[to]; before != nil {
		(*before)()
	}
	s.ships[to] = &cancel
	s.mu.Unlock()
	s.wg.Go(func() {
		err := s.send(ctx, to, index, &message)
		cancel()
		s.mu.Lock()
		last := s.ships[to] == &cancel
		if last {
			delete(s.ships, to)
		}
		s.mu.Unlock()
		switch {
		case !last:
			return
		case err == nil:
			s.stats.shipped.Add(1)
			s.log.Info("snapshot sent", "to", to, "index", index)
		case s.ctx.Err() != nil:
			return
		default:
			s.stats.unshipped.Add(1)
			s.log.Warn("snapshot not sent", "to", to, "index", index, "error", err)
		}
		s.inbox.call(func(at consensus.Clock) { s.core.Shipped(at, consensus.Addr(to), err == nil) })
	})
}

func (s *snapshots) send(ctx context.Context, to, index uint64, message *wire.Message) error {
	for _, info := range s.files.List() {
		if info.Index != index {
			continue
		}
		r, err := s.files.Open(info)
		if err != nil {
			return fmt.Errorf("open snapshot %d: %w", index, err)
		}
		meta, file := appendSnapshotMeta(nil, info, message), r.File()
		err = s.transport.SendSnapshot(ctx, to, meta, file.Size(), func(offset int64) (io.ReadCloser, error) {
			return io.NopCloser(io.NewSectionReader(file, offset, file.Size()-offset)), nil
		})
		return errors.Join(err, r.Close())
	}
	return fmt.Errorf("snapshot %d is not there any more", index)
}

// appendSnapshotMeta appends the description by which the receiver recognizes the snapshot: its
// name, and the message that the receiver's core gets with it.
func appendSnapshotMeta(b []byte, info wal.SnapshotInfo, m *wire.Message) []byte {
	b = binary.AppendUvarint(b, info.Index)
	b = binary.AppendUvarint(b, info.Term)
	return m.Append(b)
}

func parseSnapshotMeta(b []byte) (info wal.SnapshotInfo, m wire.Message, err error) {
	for _, field := range []*uint64{&info.Index, &info.Term} {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return info, m, errors.New("the snapshot's name is cut short")
		}
		*field, b = v, b[n:]
	}
	return info, m, m.Decode(b)
}

// receive begins to receive a snapshot of a peer.
func (s *snapshots) receive(from uint64, meta []byte, size int64) (peer.SnapshotSink, error) {
	info, message, err := parseSnapshotMeta(meta)
	if err != nil {
		return nil, fmt.Errorf("snapshot of replica %d: %w", from, err)
	}
	info.Bytes = size
	r, err := s.files.Receive(info)
	if err != nil {
		return nil, err
	}
	return &sink{s: s, from: from, r: r, info: info, message: message}, nil
}

// sink is a snapshot that is being received.
type sink struct {
	s       *snapshots
	from    uint64
	r       *wal.Receiver
	info    wal.SnapshotInfo
	message wire.Message
}

func (k *sink) Offset() int64 { return k.r.Offset() }

func (k *sink) Write(p []byte) (int, error) {
	if err := k.r.Write(k.r.Offset(), p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close keeps an incomplete snapshot, to be resumed. A complete one is
// verified and goes to the core.
func (k *sink) Close() error {
	if k.r.Offset() < k.info.Bytes {
		return k.r.Close()
	}
	info, err := k.r.Finish()
	if err != nil {
		return err
	}
	state, err := k.s.files.Open(info)
	if err != nil {
		return err
	}
	k.s.stats.received.Add(1)
	k.s.log.Info("snapshot received", "from", k.from, "index", info.Index, "bytes", info.Bytes)
	if !k.s.inbox.call(func(at consensus.Clock) { k.install(at, state) }) {
		return state.Close()
	}
	return nil
}

// install passes the snapshot to the core, which may no longer need
// it. The core goroutine calls it.
func (k *sink) install(at consensus.Clock, state *wal.SnapshotReader) {
	before := k.s.core.Status().Counters.Installed
	k.s.core.Install(at, consensus.Addr(k.from), &k.message, state)
	if err := state.Close(); err != nil {
		k.s.log.Warn("snapshot not closed", "error", err)
	}
	if k.s.core.Status().Counters.Installed != before {
		k.s.feed.restored(k.s.core.Revision())
	}
	k.s.disk.put(order{tidy: true})
}
