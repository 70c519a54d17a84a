"""Are the GPUs that the inventory promises there, sound, free, and each of them given to one node only?"""
