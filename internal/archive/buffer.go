package archive

// BufferStats describe a buffer pool: how much memory it holds at most, and
// which side of the pipeline waits for the other.
type BufferStats struct {
	// Size is the bytes of one buffer; Total how many the pool may hand out,
	// so that Size x Total bounds its memory.
	Size, Total int

	// Leased are handed out to open chunks now; MostLeased is the most there
	// ever were.
	Leased, MostLeased int

	// Allocated is how many were ever made: never more than Total.
	Allocated int

	// LeaseWaits counts chunks that waited to be opened. FillWaits counts
	// the times that a chunk's source waited because compression was slower;
	// StoreWaits those that compression waited because the storage was slower.
	LeaseWaits, FillWaits, StoreWaits int64
}
