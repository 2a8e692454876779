package batch

// Stats is a copy of a queue's counters since it was made. Durations in the
// histograms are nanoseconds. Waits are those of items that went in a group.
type Stats struct {
	Pushed  uint64 // items accepted
	Refused uint64 // items refused with ErrFull
	Removed uint64 // items cancelled while they waited
	Groups  uint64 // groups taken
	Items   uint64 // items in them
	Bytes   uint64 // and their sizes

	// Reasons counts the groups by why they went; index with a Reason.
	Reasons [numReasons]uint64

	GroupSize Histogram // items per group
	Wait      Histogram // ns from push to take, per item
	Flush     Histogram // ns that a flush took, per group

	Waiting      int // items that wait now
	WaitingBytes int // their sizes
	InFlight     int // lanes in use now
	Lanes        int // lanes that may be in use now
	PeakLanes    int // most lanes ever in use

	Holding bool   // the controller has a freed lane wait for returning clients
	Probes  uint64 // comparisons that the controller has made
	Moves   uint64 // of these, how many changed its setting
}
