package lab

import "testing"

// A directory in memory is for servers that flush nothing: of others, every figure
// would be wrong.
func TestMemoryIsForServersThatFlushNothing(t *testing.T) {
	t.Setenv("WEIR_LAB_DIR", "")
	t.Setenv(EnvFastDir, "/dev/shm/fast")
	if got := baseDir(Fast); got != "/dev/shm/fast" {
		t.Errorf("a server that flushes nothing is in %s, want $%s", got, EnvFastDir)
	}
	if got := baseDir(Prod); got != "/tmp" && got != "/var/tmp" {
		t.Errorf("a durable server is in %s, want a disk", got)
	}
	t.Setenv("WEIR_LAB_DIR", "/srv/lab")
	for _, d := range []Durability{Fast, Prod} {
		if got := baseDir(d); got != "/srv/lab" {
			t.Errorf("%s: %s, want $WEIR_LAB_DIR", d, got)
		}
	}
}
