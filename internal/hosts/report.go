package main

func reportMain(args []string) int { return 0 }
