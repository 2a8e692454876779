package mysql

import "testing"

// A catalogue without the triggers that the DSN's user could not be asked for is loaded again at
// the next polls, but not for ever.
func TestCatalogueWithoutHiddenTriggersIsLoadedAgain(t *testing.T) {
	t.Parallel()
	for missed, want := range map[int]bool{0: false, 1: true, maxFailures: true, maxFailures + 1: false} {
		if k := (&accountCatalogue{l: &loop{}, known: true, missed: missed}); k.outdated() != want {
			t.Errorf("after %d loads without them it is outdated: %v", missed, !want)
		}
	}
}
