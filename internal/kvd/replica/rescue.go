package replica

import (
	"errors"
	"fmt"

	"github.com/weirdb/weir/internal/kvd/state"
	"github.com/weirdb/weir/internal/kvd/wal"
)

// Rescue reads the state in the directory of a replica that does not run, with all entries
// of its log, including those that it does not know to be committed. As at a start,
// an incomplete write at the end is cut off. It returns the last entry.
func Rescue(dir string) (store *state.Store, last uint64, err error) {
	first := ""
	sum, err := wal.Verify(dir, func(f wal.Finding) {
		if f.Problem != "" && first == "" {
			first = fmt.Sprintf("%s at byte %d: %s", f.File, f.Offset, f.Problem)
		}
	})
	switch {
	case err != nil:
		return nil, 0, err
	case sum.Problems > 0:
		return nil, 0, fmt.Errorf("%s is damaged, beginning with %s; take another replica's (weir kv verify)", dir, first)
	case sum.Last == 0 && sum.Snapshot.Index == 0:
		return nil, 0, fmt.Errorf("%s holds no log of a replica", dir)
	}
	r := &Replica{inbox: newInbox(), cfg: Config{ID: sum.Identity.Replica, Cluster: sum.Identity.Cluster, Dir: dir}.withDefaults()}
	log, found, err := wal.Open(dir, sum.Identity, wal.Options{})
	if err != nil {
		return nil, 0, err
	}
	r.disk = newDisk(log, r.inbox, r.cfg.Log)
	defer func() { err = errors.Join(err, log.Close()) }()
	r.store = state.New(state.Config{})
	if err := r.build(log, found); err != nil {
		return nil, 0, err
	}
	last, err = r.core.Rescue()
	return r.store, last, err
}
