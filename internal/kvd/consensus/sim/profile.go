package sim

import (
	"fmt"
	"strings"
	"time"
)

// Profile says which faults a run has and how often. The numbers of faults are weights for
// drawing the next one.
type Profile struct {
	Name  string
	About string

	Every time.Duration // mean time between faults

	Crash, CrashAll, CrashLeader                int
	Partition, Isolate, OneWay, CutClient       int
	Triangle                                    int // a replica no longer hears the leader, a third one hears both
	SlowDisk, FailDisk, SlowReplica, HangDisk   int
	Pause, PauseLeader, ClockJump               int
	ClientCrash, Transfer, Membership, LoseDisk int

	Delay           time.Duration // median, one way
	Loss, Duplicate float64       // shares of messages between replicas
	Drift           float64       // of a monotonic clock, either way
	Skew            time.Duration // of a wall clock, either way
	Sync            time.Duration // median
	SnapshotBytes   int64         // of log; 0: seldom
	Segment         int           // records in a segment of the log; 0: drawn from the seed
	AfterEvent      float64       // chance of a fault right after a critical event
	Presets         bool          // a restarted replica may have another preset
}

// Profiles returns all profiles.
func Profiles() []Profile {
	const ms = time.Millisecond
	return []Profile{
		{Name: "calm", About: "nothing goes wrong but delays", Every: time.Hour, Delay: ms / 2, Sync: ms / 10, SnapshotBytes: 4096},
		{
			Name: "crash", About: "replicas crash and come back, sometimes all at once, and lose what was not synced",
			Every: 150 * ms, Crash: 4, CrashAll: 1, CrashLeader: 4, ClientCrash: 1, Delay: ms / 2, Sync: 2 * ms, SnapshotBytes: 4096, Duplicate: 0.01, AfterEvent: 0.01,
		},
		{
			Name: "partition", About: "the network splits, one way or both, with the leader on either side, and loses messages",
			Every: 200 * ms, Partition: 4, Isolate: 4, OneWay: 3, Triangle: 3, CutClient: 2, CrashLeader: 1, Delay: ms, Sync: ms / 2, Loss: 0.01, Duplicate: 0.02, Drift: 0.01,
		},
		{
			Name: "clock", About: "processes pause longer than a lease lasts, clocks run at different rates and jump",
			Every: 150 * ms, Pause: 3, PauseLeader: 4, ClockJump: 3, Isolate: 2, Transfer: 1, Delay: ms / 2, Sync: ms / 4, Drift: 0.045, Skew: 2 * time.Second, AfterEvent: 0.005,
		},
		{
			Name: "slow", About: "disks and replicas are slow, hang or stop, syncs fail",
			Every: 150 * ms, SlowDisk: 4, FailDisk: 2, HangDisk: 1, SlowReplica: 4, CrashLeader: 1, Pause: 1, Delay: ms / 2, Sync: 2 * ms, SnapshotBytes: 8192,
		},
		{
			Name: "members", About: "replicas join, are promoted, leave and are replaced under load",
			Every: 200 * ms, Membership: 6, LoseDisk: 2, Crash: 2, Isolate: 1, Transfer: 1, Delay: ms / 2, Sync: ms / 2, SnapshotBytes: 2048,
		},
		{
			Name: "views", About: "leaders change in quick succession",
			Every: 70 * ms, CrashLeader: 5, Isolate: 4, Transfer: 4, PauseLeader: 3, Crash: 1, Delay: ms / 2, Sync: ms, Duplicate: 0.02, AfterEvent: 0.02,
		},
		{
			Name: "far", About: "replicas are tens of milliseconds apart, as in different regions",
			Every: 400 * ms, CrashLeader: 2, Isolate: 2, CutClient: 2, Crash: 1, Delay: 15 * ms, Sync: ms / 4, Duplicate: 0.02,
		},
		{
			Name: "storm", About: "everything at once, and presets change at restarts",
			Every: 100 * ms, Crash: 2, CrashAll: 1, CrashLeader: 2, Partition: 2, Isolate: 2, OneWay: 2, Triangle: 1, CutClient: 1, SlowDisk: 1, FailDisk: 1, HangDisk: 1, SlowReplica: 1,
			Pause: 1, PauseLeader: 1, ClockJump: 1, ClientCrash: 1, Transfer: 1, Membership: 1, Delay: ms, Loss: 0.005, Duplicate: 0.01, Drift: 0.03,
			Skew: time.Second, Sync: ms, SnapshotBytes: 4096, Presets: true, AfterEvent: 0.01,
		},
	}
}

// ProfileByName returns the profile with this name.
func ProfileByName(name string) (Profile, error) {
	var names []string
	for _, p := range Profiles() {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Profile{}, fmt.Errorf("profile %q: want one of %s", name, strings.Join(names, ", "))
}

// weights returns the faults of a profile with their weights.
func (p *Profile) weights() []struct {
	kind   fault
	weight int
} {
	return []struct {
		kind   fault
		weight int
	}{
		{(*nemesis).crash, p.Crash},
		{(*nemesis).crashAll, p.CrashAll},
		{(*nemesis).crashLeader, p.CrashLeader},
		{(*nemesis).partition, p.Partition},
		{(*nemesis).isolateOne, p.Isolate},
		{(*nemesis).oneWay, p.OneWay},
		{(*nemesis).triangle, p.Triangle},
		{(*nemesis).cutClient, p.CutClient},
		{(*nemesis).slowDisk, p.SlowDisk},
		{(*nemesis).failDisk, p.FailDisk},
		{(*nemesis).hangDisk, p.HangDisk},
		{(*nemesis).slowReplica, p.SlowReplica},
		{(*nemesis).pause, p.Pause},
		{(*nemesis).pauseLeader, p.PauseLeader},
		{(*nemesis).clockJump, p.ClockJump},
		{(*nemesis).crashClient, p.ClientCrash},
		{(*nemesis).transferLeader, p.Transfer},
		{(*nemesis).changeMembers, p.Membership},
		{(*nemesis).loseDisk, p.LoseDisk},
	}
}
